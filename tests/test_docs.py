"""docs/operations.md and docs/security.md speak of what there is, and of all of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.infra.conftest import synthesise
from trainer import failures, layout

DOCS = Path(__file__).parents[1] / "docs"
OPERATIONS = (DOCS / "operations.md").read_text()
SECURITY = (DOCS / "security.md").read_text()


@pytest.fixture(scope="module")
def templates() -> dict[str, dict[str, Any]]:
    everything = {"sandbox": "true", "customer_key": "true", "isolated_network": "true"}
    secret = f"arn:aws:secretsmanager:xx-nowhere-1:{'0' * 12}:secret:s"
    return synthesise(**everything, secret_arn=secret)


def test_every_ending_of_a_replica_is_told_with_its_code() -> None:
    for kind, ending in failures.ENDINGS.items():
        relaunched = "yes" if ending.relaunch else "no"
        assert f"| `{kind.__name__}` | {ending.exit_code} | {relaunched} |" in OPERATIONS
    unexpected = failures.UNEXPECTED
    assert (
        f"`RuntimeError` | {unexpected.exit_code} | {'yes' if unexpected.relaunch else 'no'} |" in OPERATIONS
    )


def test_every_metric_is_explained() -> None:
    training = (DOCS / "training.md").read_text()
    assert [name for name, text in layout.METRICS.items() if f"| `{name}` | {text} |" not in training] == []


def test_every_error_of_a_run_is_told(templates: dict[str, dict[str, Any]]) -> None:
    names = set(re.findall(r'\\"Error\\":\\"([A-Za-z]+)\\"', json.dumps(templates["runs"])))
    assert {"QuotaTooSmall", "ReplicaFailed"} <= names
    assert [name for name in sorted(names) if f"| `{name}` |" not in OPERATIONS] == []


def test_every_named_statement_is_accounted_for(templates: dict[str, dict[str, Any]]) -> None:
    sids = set(re.findall(r'"Sid": "([A-Za-z]+)"', json.dumps(templates)))
    assert {"AddToRuns", "LogIsWriteOnce", "LendKeyToVolumes"} <= sids
    assert [sid for sid in sorted(sids) if f"`{sid}`" not in SECURITY] == []


def test_every_check_on_aws_is_listed_and_there() -> None:
    source = (Path(__file__).parent / "e2e" / "test_stacks_on_aws.py").read_text()
    there = set(re.findall(r"def test_(\w+)", source))
    section = OPERATIONS[OPERATIONS.index("## What has never run on AWS") :]
    assert set(re.findall(r"\| `(\w+)` \|", section)) == there
