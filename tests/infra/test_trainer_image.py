"""The image build: what starts it, what it runs, and that CloudFormation always hears of its end."""

import json
import os
import runpy
import subprocess
import sys
import types
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.build_handler import ANSWER_FIELDS
from infra.image_build_spec import build_spec
from infra.trainer_image import HANDLER

EVENT = {
    "RequestType": "Create",
    "ResponseURL": "https://example.com/answer?signature=a%2Fb&x=1",
    "StackId": "arn:of:stack/name",
    "RequestId": "0b1c",
    "LogicalResourceId": "Build",
    "ResourceProperties": {"Project": "project", "ImageUri": "registry.example/repo:tag"},
}


class _CodeBuild:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.started: list[dict[str, Any]] = []

    def start_build(self, **request: Any) -> dict[str, Any]:
        if self.error:
            raise self.error
        self.started.append(request)
        return {"build": {"id": "project:1"}}


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[_CodeBuild, list[dict[str, Any]]]]:
    """Run the handler's file as the Lambda has it; return what it started and what it answered."""

    def run(event: dict[str, Any], error: Exception | None = None) -> tuple[_CodeBuild, list[dict[str, Any]]]:
        client, answers = _CodeBuild(error), []

        def urlopen(request: urllib.request.Request, timeout: float) -> None:
            assert [request.get_method(), request.full_url] == ["PUT", event["ResponseURL"]]
            answers.append(json.loads(request.data or b""))  # type: ignore[arg-type]

        boto3 = types.SimpleNamespace(client=lambda _service: client)
        monkeypatch.setitem(sys.modules, "boto3", boto3)  # type: ignore[arg-type]
        monkeypatch.setattr(urllib.request, "urlopen", urlopen)
        namespace = runpy.run_path(str(HANDLER))
        if error:
            with pytest.raises(type(error)):
                namespace["handler"](event, None)
        else:
            namespace["handler"](event, None)
        return client, answers

    return run


@pytest.mark.parametrize("kind", ["Create", "Update"])
def test_the_handler_starts_a_build_and_leaves_the_answer_to_it(kind: str, handler: Any) -> None:
    client, answers = handler({**EVENT, "RequestType": kind})
    (request,) = client.started
    assert request["projectName"] == "project"
    variables = {v["name"]: v["value"] for v in request["environmentVariablesOverride"]}
    assert variables == {name: EVENT[name] for name in ANSWER_FIELDS} | {
        "ImageUri": "registry.example/repo:tag"
    }
    assert answers == []


def test_deleting_keeps_the_images(handler: Any) -> None:
    client, answers = handler({**EVENT, "RequestType": "Delete"})
    assert client.started == []
    assert [answer["Status"] for answer in answers] == ["SUCCESS"]


def test_a_build_that_can_not_be_started_is_answered_at_once(handler: Any) -> None:
    _, (answer,) = handler(EVENT, RuntimeError("AccessDenied: no"))
    assert answer["Status"] == "FAILED"
    assert "AccessDenied: no" in answer["Reason"]
    assert {name: answer[name] for name in ANSWER_FIELDS[1:]} == {n: EVENT[n] for n in ANSWER_FIELDS[1:]}


def test_the_handler_fits_into_a_template() -> None:
    """Inline code of a function: at most 4,096 characters (AWS::Lambda::Function Code)."""
    assert len(HANDLER.read_text()) <= 4096


def _stand_in(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> "$CALLS"\n{body}\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("failing", "exists", "pushed", "status"),
    [
        ("nothing", False, True, "SUCCESS"),
        ("nothing", True, False, "SUCCESS"),
        ("login", False, False, "FAILED"),
        ("build", False, False, "FAILED"),
        ("push", False, True, "FAILED"),
    ],
)
def test_the_build_answers_cloudformation_whatever_happens(
    failing: str, exists: bool, pushed: bool, status: str, tmp_path: Path
) -> None:
    """The buildspec's own commands, as they stand, on stand-ins for docker, aws and curl."""
    tools, source = tmp_path / "tools", tmp_path / "source"
    tools.mkdir()
    source.mkdir()
    there = "sha256:0123" if exists else ""
    _stand_in(
        tools,
        "aws",
        f"""case "$2" in
          get-login-password) echo password;;
          describe-images) [ -n "{there}" ] || [ -e pushed ] || exit 254; echo sha256:0123;;
        esac""",
    )
    _stand_in(tools, "docker", f'case "$1" in {failing}) exit 1;; push) touch pushed;; esac')
    _stand_in(tools, "curl", 'while [ "$1" != --upload-file ]; do shift; done; cp "$2" "$ANSWER"')
    calls, answer = tmp_path / "calls", tmp_path / "answer.json"
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls), "ANSWER": str(answer),
        "CODEBUILD_BUILD_URL": "https://console.example/build", "ImageUri": "registry.example/repo:tag",
        **{name: str(EVENT[name]) for name in ANSWER_FIELDS},
    }  # fmt: skip
    spec = build_spec("base/image:1")
    env |= spec["env"]["variables"]
    phase = spec["phases"]["build"]
    codes = [subprocess.run(["/bin/sh", "-c", c], cwd=source, env=env, check=False).returncode
             for c in (*phase["commands"], *phase["finally"])]  # fmt: skip
    assert [code == 0 for code in codes] == [status == "SUCCESS", True]
    found = json.loads(answer.read_text())
    assert found.pop("Reason") == "Image build, see its log: https://console.example/build"
    assert found.pop("Data") == ({"Digest": "sha256:0123"} if status == "SUCCESS" else {})
    assert found.pop("PhysicalResourceId") == "trainer-image"
    assert found == {"Status": status} | {name: EVENT[name] for name in ANSWER_FIELDS[1:]}
    said = calls.read_text()
    assert ("docker push registry.example/repo:tag" in said) is pushed
    assert said.rstrip().endswith(str(EVENT["ResponseURL"]))
    assert "describe-images --repository-name repo --image-ids imageTag=tag " in said
    if exists:
        assert "docker" not in said  # what is there already is not even signed in for
    if failing == "nothing" and not exists:
        assert (
            "docker build --platform linux/amd64 --build-arg BASE_IMAGE=base/image:1 "
            "--label org.opencontainers.image.source=unknown --label org.opencontainers.image.revision=tag "
            "--file container/Dockerfile --tag registry.example/repo:tag ." in said
        )
        assert "--username AWS --password-stdin registry.example" in said


def test_one_phase_holds_it_all() -> None:
    """A `finally` runs only where its phase was reached: a second phase could fail before it."""
    assert list(build_spec("x")["phases"]) == ["build"]
