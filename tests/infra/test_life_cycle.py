"""From the first deployment to the last: what must never be replaced, and what every choice passes."""

import json
import runpy
import sys
import types
import urllib.request
from collections.abc import Callable
from typing import Any

import aws_cdk as cdk
import pytest
from cdk_nag import AwsSolutionsChecks

from infra.application import build
from infra.sandbox_emptier import HANDLER
from infra.settings import Settings

Template = dict[str, Any]
Synth = Callable[..., dict[str, Template]]

# Renaming one of these constructs replaces the resource: results, images or keys would be left behind.
STATEFUL = {
    "storage": {
        "AWS::S3::Bucket": ["RunBucket3DA31E5E"],
        "AWS::ECR::Repository": ["TrainerRepository83C964A8"],
        "AWS::KMS::Key": ["Key961B73FD"],
    },
    "runs": {"AWS::StepFunctions::StateMachine": ["RunsE57239E6"]},
}


def test_what_holds_data_keeps_its_logical_id(synth: Synth) -> None:
    found = synth(image_uri="a/b:c", customer_key="true")
    for stack, kinds in STATEFUL.items():
        for kind, ids in kinds.items():
            assert [n for n, r in found[stack]["Resources"].items() if r["Type"] == kind] == ids


def test_two_stages_have_nothing_in_common(synth: Synth) -> None:
    ours, theirs = synth(image_uri="a/b:c"), synth(image_uri="a/b:c", prefix="staging")
    assert {name.removeprefix("staging-") for name in theirs} == ours.keys()
    text = json.dumps(theirs)
    assert '"Name": "diloco' not in text  # exports
    assert "diloco-storage" not in text
    assert "diloco-runs" not in text


@pytest.mark.parametrize("region", ["xx-one-1", "xx-two-2", "cn-three-3"])
def test_no_region_and_no_account_is_asked_for_at_synth(
    region: str, synth: Synth, templates: dict[str, Template], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "CDK_DEFAULT_REGION"):
        monkeypatch.setenv(name, region)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "CDK_DEFAULT_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    assert synth() == templates


@pytest.mark.parametrize(
    "context",
    [
        {"sandbox": "true"},
        {"customer_key": "true", "isolated_network": "true", "read_uris": "s3://some-data/text/"},
        {"notification_email": "me@example.com", "monthly_budget_usd": "10", "permissions_boundary": "b"},
        {"image_uri": "a/b:c", "subnet_ids": "subnet-0123abcd", "security_group_ids": "sg-0123abcd"},
    ],
    ids=lambda context: "+".join(context),
)
def test_every_setting_passes_the_security_rules(context: dict[str, str]) -> None:
    """app.py's synthesis ends where cdk-nag finds what nobody has given a reason for."""
    app = cdk.App(context=context)
    build(app, Settings.from_context(app.node))
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    assembly = app.synth()
    assert len(assembly.stacks) == 3


class _S3:
    """One bucket in memory, two objects a page."""

    def __init__(self, keys: list[str]) -> None:
        self.keys, self.aborted = keys, list[str]()

    def get_paginator(self, operation: str) -> Any:
        if operation == "list_multipart_uploads":
            pages = [{"Uploads": [{"Key": "k", "UploadId": "u"}]}]
        else:
            pages = [
                {"Contents": [{"Key": key} for key in self.keys[at : at + 2]]}
                for at in range(0, len(self.keys), 2)
            ] or [{}]
        return types.SimpleNamespace(paginate=lambda Bucket: iter(pages))  # noqa: N803

    def delete_objects(self, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803
        gone = {found["Key"] for found in Delete["Objects"]}
        self.keys = [key for key in self.keys if key not in gone]
        return {"Errors": [{"Key": "locked"}]} if "locked" in gone else {}

    def abort_multipart_upload(self, UploadId: str, **_: str) -> None:  # noqa: N803
        self.aborted.append(UploadId)


@pytest.mark.parametrize(
    ("request_type", "keys", "left_ms", "status", "left"),
    [
        ("Delete", ["a", "b", "c"], 900_000, "SUCCESS", []),
        ("Delete", [], 900_000, "SUCCESS", []),
        ("Create", ["a"], 900_000, "SUCCESS", ["a"]),
        ("Update", ["a"], 900_000, "SUCCESS", ["a"]),
        ("Delete", ["a", "b", "c"], 1000, "FAILED", ["c"]),
        ("Delete", ["locked"], 900_000, "FAILED", []),
    ],
)
def test_the_handler_empties_on_deletion_alone_and_always_answers(
    request_type: str, keys: list[str], left_ms: int, status: str, left: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    s3, answers = _S3(keys), []
    monkeypatch.setitem(sys.modules, "boto3", types.SimpleNamespace(client=lambda _: s3))  # type: ignore[arg-type]
    monkeypatch.setattr(
        urllib.request, "urlopen", lambda request, timeout: answers.append(json.loads(request.data))
    )
    event = {
        "RequestType": request_type, "ResponseURL": "https://example.com/answer", "StackId": "s",
        "RequestId": "r", "LogicalResourceId": "l", "ResourceProperties": {"Bucket": "bucket"},
    }  # fmt: skip
    context = types.SimpleNamespace(get_remaining_time_in_millis=lambda: left_ms)
    run = runpy.run_path(str(HANDLER))["handler"]
    if status == "FAILED":
        with pytest.raises((RuntimeError, TimeoutError)):
            run(event, context)
    else:
        run(event, context)
    assert [answer["Status"] for answer in answers] == [status]
    assert s3.keys == left
    assert len(HANDLER.read_text()) <= 4096
