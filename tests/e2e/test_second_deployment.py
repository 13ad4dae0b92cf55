"""Deploying again with other trainer sources: a new image, nothing that holds data touched."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployed import ROOT, TOY, Deployed

STACKS = ("diloco-storage", "diloco-runs")
SOURCES = ("app.py", "cdk.json", ".dockerignore", "infra", "trainer", "container")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what makes the stacks, one line of the trainer being different."""
    folder = tmp_path_factory.mktemp("changed")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    with (folder / "trainer/metrics.py").open("a") as file:
        file.write("\n# changed\n")
    return folder


def test_new_trainer_sources_are_a_new_image_and_nothing_else(deployed: Deployed, changed: Path) -> None:
    before = _resources(deployed), _exports(deployed), _image(deployed)
    printed = deployed.deploy(cwd=changed)
    after = _resources(deployed), _exports(deployed), _image(deployed)
    assert printed.count("no changes") == 2, printed  # the storage stack and the monitoring stack
    assert after[0] == before[0]
    assert after[1] == before[1]
    assert {export.rsplit(":", 1)[0] for export in after[1]} == {"diloco-storage", "diloco-runs"}
    (repository, digest), (new_repository, new_digest) = (image.split("@") for image in (before[2], after[2]))
    assert new_repository == repository
    assert new_digest != digest
    assert _digests(deployed, repository) == {digest, new_digest}
    ended = deployed.execute("after", {**TOY, "n_replicas": 1})
    assert ended["status"] == "SUCCEEDED", ended["cause"]
    (job,) = deployed.jobs(ended["executionArn"]).values()
    assert job["AlgorithmSpecification"]["TrainingImage"] == after[2]
    # What is deployed is what the sources say: no difference in either stack.
    assert "Number of stacks with differences: 0" in deployed.cdk("diff", "--fail", cwd=changed)


def _resources(deployed: Deployed) -> dict[str, Any]:
    """Physical ids by stack and logical id. A resource that is replaced gets another."""
    cloudformation, found = deployed.client("cloudformation"), {}
    for stack in STACKS:
        for resource in cloudformation.describe_stack_resources(StackName=stack)["StackResources"]:
            found[f"{stack} {resource['LogicalResourceId']}"] = resource["PhysicalResourceId"]
    return found


def _exports(deployed: Deployed) -> dict[str, str]:
    exports = deployed.client("cloudformation").list_exports()["Exports"]
    return {export["Name"]: export["Value"] for export in exports if "CdkBootstrap" not in export["Name"]}


def _image(deployed: Deployed) -> str:
    image: str = deployed.asked_for("TrainingImage")
    return image


def _digests(deployed: Deployed, repository: str) -> set[str]:
    name = repository.split("/", 1)[1]
    images = deployed.client("ecr").describe_images(repositoryName=name)["imageDetails"]
    return {image["imageDigest"] for image in images}
