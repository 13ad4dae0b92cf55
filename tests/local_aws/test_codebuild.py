"""Builds on the embedded account: the buildspec runs as it stands, docker is a stand-in."""

import io
import json
import zipfile
from typing import Any

import pytest

REGISTRY = "000000000000.dkr.ecr.us-east-1.amazonaws.com"

PUSH = (
    "ecr:GetAuthorizationToken",
    "ecr:BatchCheckLayerAvailability",
    "ecr:InitiateLayerUpload",
    "ecr:UploadLayerPart",
    "ecr:CompleteLayerUpload",
    "ecr:PutImage",
)

BUILD_AND_PUSH = {
    "pre_build": {
        "commands": [f"aws ecr get-login-password | docker login --username AWS --password-stdin {REGISTRY}"]
    },
    "build": {
        "commands": [
            "export IMAGE=$REGISTRY/$REPOSITORY:$TAG",
            "docker build --platform linux/amd64 --build-arg BASE_IMAGE=python:3.11 -t $IMAGE .",
            "docker push $IMAGE",
        ]
    },
}


@pytest.fixture(scope="module")
def source(account: Any) -> str:
    """A build context in S3, as CDK's assets are."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("Dockerfile", "FROM scratch\n")
    account.client("s3").put_object(Bucket=account.bucket, Key="source.zip", Body=archive.getvalue())
    return f"{account.bucket}/source.zip"


def start_build(account: Any, source: str, phases: dict[str, Any], *rights: str, **variables: str) -> str:
    """The id of a build in a project and with a role of its own."""
    role = account.role({"Service": "codebuild.amazonaws.com"}, account.allow("s3:GetObject", *rights))
    project = account.unique("project")
    codebuild = account.client("codebuild")
    codebuild.create_project(
        name=project,
        source={
            "type": "S3",
            "location": source,
            "buildspec": json.dumps({"version": "0.2", "phases": phases}),
        },
        artifacts={"type": "NO_ARTIFACTS"},
        environment={
            "type": "LINUX_CONTAINER",
            "image": "aws/codebuild/standard:7.0",
            "computeType": "BUILD_GENERAL1_SMALL",
            "environmentVariables": [{"name": "REGISTRY", "value": REGISTRY}],
        },
        serviceRole=role,
    )
    overrides = [{"name": name, "value": value} for name, value in variables.items()]
    build = codebuild.start_build(projectName=project, environmentVariablesOverride=overrides)["build"]
    build_id: str = build["id"]
    return build_id


def build_log(account: Any, build_id: str) -> list[str]:
    project, _, stream = build_id.partition(":")
    group = f"/aws/codebuild/{project}"
    logs = account.client("logs")
    if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
        return []
    events = logs.get_log_events(logGroupName=group, logStreamName=f"{project}/{stream}")["events"]
    return [event["message"] for event in events]


def ended_build(account: Any, build_id: str) -> dict[str, Any]:
    codebuild = account.client("codebuild")

    def ended() -> dict[str, Any] | None:
        build: dict[str, Any] = codebuild.batch_get_builds(ids=[build_id])["builds"][0]
        return build if build["buildStatus"] != "IN_PROGRESS" else None

    build: dict[str, Any] = account.wait_until(ended, f"build {build_id} ends")
    return build


def run_build(
    account: Any, source: str, phases: dict[str, Any], *rights: str, **variables: str
) -> tuple[dict[str, Any], list[str]]:
    """The ended build and its log."""
    build_id = start_build(account, source, phases, *rights, **variables)
    return ended_build(account, build_id), build_log(account, build_id)


def test_a_pushed_image_is_in_the_repository_under_its_tag(account: Any, source: str) -> None:
    repository = account.unique("pushed")
    account.client("ecr").create_repository(repositoryName=repository)
    build, log = run_build(account, source, BUILD_AND_PUSH, *PUSH, REPOSITORY=repository, TAG="v1")
    assert build["buildStatus"] == "SUCCEEDED", log
    images = account.client("ecr").describe_images(repositoryName=repository)["imageDetails"]
    assert [image["imageTags"] for image in images] == [["v1"]]
    assert any(line.startswith("stand-in docker: build") for line in log)


@pytest.mark.parametrize("missing", PUSH)
def test_a_role_without_one_right_to_push_fails_its_build(account: Any, source: str, missing: str) -> None:
    repository = account.unique("denied")
    account.client("ecr").create_repository(repositoryName=repository)
    rights = [right for right in PUSH if right != missing]
    build, log = run_build(account, source, BUILD_AND_PUSH, *rights, REPOSITORY=repository, TAG="v1")
    assert build["buildStatus"] == "FAILED"
    assert any("AccessDenied" in line and missing in line for line in log), log


def test_finally_and_post_build_run_after_a_failed_build_and_know_it(account: Any, source: str) -> None:
    say = "echo $CODEBUILD_BUILD_SUCCEEDING $IN_SHELL in"
    phases = {
        "pre_build": {"commands": ["export IN_SHELL=kept", f"{say} pre_build"]},
        "build": {
            "commands": ["docker build -t x .", "echo not reached"],
            "finally": [f"{say} finally"],
        },
        "post_build": {"commands": [f"{say} post_build"]},
    }
    build, log = run_build(account, source, phases, STAND_IN_DOCKER_FAILS="1")
    assert build["buildStatus"] == "FAILED"
    said = [line for line in log if "[Container]" not in line]
    assert said == [
        "1 kept in pre_build",
        "stand-in docker: build -t x .",
        "stand-in docker: build fails, as STAND_IN_DOCKER_FAILS asks",
        "0 kept in finally",
        "0 kept in post_build",
    ]
    states = {phase["phaseType"]: phase.get("phaseStatus") for phase in build["phases"]}
    assert (states["PRE_BUILD"], states["BUILD"], states["POST_BUILD"]) == (
        "SUCCEEDED",
        "FAILED",
        "SUCCEEDED",
    )


def test_a_failed_pre_build_skips_the_rest(account: Any, source: str) -> None:
    phases = {
        "pre_build": {"commands": ["exit 4"], "finally": ["echo answered"]},
        "build": {"commands": ["echo not reached"]},
        "post_build": {"commands": ["echo not reached"]},
    }
    build, log = run_build(account, source, phases)
    assert build["buildStatus"] == "FAILED"
    assert [line for line in log if "[Container]" not in line] == ["answered"]


def test_what_a_buildspec_may_not_ask_here_is_named(account: Any, source: str) -> None:
    build, log = run_build(account, source, {"build": {"commands": ["true"], "run-as": "nobody"}})
    assert build["buildStatus"] == "FAILED"
    assert log == ["[Container] not emulated in a buildspec: phases.build.run-as"]


def test_a_stopped_build_ends_its_processes(account: Any, source: str) -> None:
    phases = {"build": {"commands": ["sleep 600 & echo child $!; wait", "echo not reached"]}}
    build_id = start_build(account, source, phases)

    def child() -> int | None:
        said = [line for line in build_log(account, build_id) if line.startswith("child ")]
        return int(said[0].split()[1]) if said else None

    process = account.wait_until(child, "the build says what it started")
    account.client("codebuild").stop_build(id=build_id)
    assert ended_build(account, build_id)["buildStatus"] == "STOPPED"
    account.wait_until(lambda: not account.is_running(process), "the build's process ends")
    assert "echo not reached" not in " ".join(build_log(account, build_id)[1:])
