"""Secrets come from Secrets Manager into the process, and no further."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from trainer import layout
from trainer.failures import BadSecret, ending_of
from trainer.secret_environment import add_secrets


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("secretsmanager")


def test_members_become_environment_and_replace_nothing(secrets: Any) -> None:
    text = json.dumps({"HF_TOKEN": "hush", "HOME": "/elsewhere"})
    arn = secrets.create_secret(Name="s", SecretString=text)["ARN"]
    environ = {layout.SECRET_ENV: arn, "HOME": "/root"}
    add_secrets(environ)
    assert environ == {layout.SECRET_ENV: arn, "HOME": "/root", "HF_TOKEN": "hush"}


def test_without_an_arn_nothing_is_asked() -> None:
    environ: dict[str, str] = {}
    add_secrets(environ)
    assert environ == {}


@pytest.mark.parametrize("text", ["hush", "[]", '{"A": 1}'])
def test_a_secret_that_is_no_object_of_texts_is_refused_without_being_shown(text: str, secrets: Any) -> None:
    arn = secrets.create_secret(Name="s", SecretString=text)["ARN"]
    with pytest.raises(BadSecret) as refused:
        add_secrets({layout.SECRET_ENV: arn})
    assert arn in str(refused.value)
    assert "hush" not in str(refused.value)
    assert not ending_of(refused.value).relaunch


def test_a_missing_secret_is_no_denied_one(secrets: Any) -> None:
    with pytest.raises(BadSecret, match="ResourceNotFoundException"):
        add_secrets({layout.SECRET_ENV: "arn:of:nowhere"})
