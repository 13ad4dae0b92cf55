"""The buildspec of the template, as it stands, on the context that CDK stages; `docker` is buildah."""

import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.container.engine import environ, podman
from tests.infra.conftest import synthesise

IMAGE: Final = "localhost/from-buildspec:0123456789abcdef0123"

# What the buildspec calls. There is no registry: what is pushed is known by its digest.
TOOLS: Final = {
    "aws": """case "$2" in
      get-login-password) echo password ;;
      describe-images) cat "$PUSHED" ;;
      *) echo "no aws $* here" >&2; exit 1 ;;
    esac""",
    "docker": """case "$1" in
      login) test "$(cat)" = password ;;
      build) shift; buildah build --layers --force-rm --format docker $WHEELS "$@" ;;
      push) buildah inspect --type image --format '{{.FromImageDigest}}' "$2" > "$PUSHED" ;;
      *) echo "no docker $1 here" >&2; exit 1 ;;
    esac""",
    "curl": 'while [ "$1" != --upload-file ]; do shift; done; cp "$2" "$ANSWER"',
}


class CodeBuild:
    """One project's builds, in a folder."""

    def __init__(self, folder: Path, base: str) -> None:
        template = synthesise(outdir=folder / "cdk.out", base_image=base)["runs"]
        (project,) = (
            resource["Properties"]
            for resource in template["Resources"].values()
            if resource["Type"] == "AWS::CodeBuild::Project"
        )
        self.spec: dict[str, Any] = yaml.safe_load(project["Source"]["BuildSpec"])
        (dockerfile,) = (folder / "cdk.out").glob("asset.*/container/Dockerfile")
        self.source = dockerfile.parents[1]
        self.folder = folder
        tools = folder / "tools"
        tools.mkdir()
        for name, body in TOOLS.items():
            (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "$CALLS"\n{body}\n')
            (tools / name).chmod(0o755)

    def build(self) -> str:
        """Run the one phase; the answer CloudFormation gets."""
        wheels = os.environ.get("PIP_FIND_LINKS", "")
        variables = {
            "PATH": f"{self.folder / 'tools'}:{os.environ['PATH']}",
            "WHEELS": f"--volume {wheels}:/opt/wheels:ro" if wheels and Path(wheels).is_dir() else "",
            **{name.upper(): str(self.folder / name) for name in ("calls", "pushed", "answer")},
            "ImageUri": IMAGE,
            "ResponseURL": "https://example.com/?a=b&c=d",
            "StackId": "stack",
            "RequestId": "request",
            "LogicalResourceId": "Build",
            "CODEBUILD_BUILD_ID": "project:1",
            "CODEBUILD_SOURCE_REPO_URL": "s3://assets/source.zip",
            **self.spec["env"]["variables"],
        }
        phase = self.spec["phases"]["build"]
        for command in (*phase["commands"], *phase["finally"]):
            shell = ["/bin/sh", "-c", command]
            subprocess.run(shell, cwd=self.source, env=environ() | variables, check=False)
        return (self.folder / "answer").read_text()

    def calls(self) -> list[str]:
        """The subcommands of `docker`, in order."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.split()[1] for line in lines if line.startswith("docker ")]


@pytest.fixture
def codebuild(image: str, base: str, tmp_path: Path) -> CodeBuild:
    """After `image`, whose layers it shares."""
    return CodeBuild(tmp_path, base)


def test_it_builds_the_image_once_and_says_so(codebuild: CodeBuild, summary: list[str]) -> None:
    assert '"Status":"SUCCESS"' in codebuild.build()
    assert codebuild.calls() == ["login", "build", "push"]
    digest = (codebuild.folder / "pushed").read_text().strip()
    assert digest.startswith("sha256:")
    assert f'"Data":{{"Digest":"{digest}"}}' in (codebuild.folder / "answer").read_text()
    shown = "{{range $name, $text := .Config.Labels}}{{$name}}={{$text}}\n{{end}}"
    labels = podman("image", "inspect", "--format", shown, IMAGE).splitlines()
    assert "org.opencontainers.image.source=s3://assets/source.zip" in labels
    assert "org.opencontainers.image.revision=0123456789abcdef0123" in labels
    # The tag is a hash of what is built: there already, nothing is.
    assert '"Status":"SUCCESS"' in codebuild.build()
    assert codebuild.calls() == ["login", "build", "push"]
    summary.append("the buildspec's commands")


def test_a_dockerfile_that_does_not_build_fails_the_deployment(codebuild: CodeBuild) -> None:
    broken = "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN false\n"
    (codebuild.source / "container" / "Dockerfile").write_text(broken)
    assert '"Status":"FAILED"' in codebuild.build()
    assert codebuild.calls() == ["login", "build"]


def test_the_context_is_the_trainer_and_what_builds_it(codebuild: CodeBuild) -> None:
    files = {path.relative_to(codebuild.source) for path in codebuild.source.rglob("*") if path.is_file()}
    assert {path.parts[0] for path in files} == {"container", "trainer"}
    assert [path for path in files if path.suffix == ".pyc"] == []
