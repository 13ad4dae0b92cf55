"""Quotas and rights of the deployed stacks, where the embedded AWS evaluates them for real."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.stacks import Stacks, deployed

M5 = "ml.m5.xlarge for training job usage"
# 35 pages of 100; what is asked for sorts to the last.
QUOTAS: dict[str, Any] = {f"a quota of something else {number:04d}": number for number in range(3430)} | {
    M5: 3,
    "ml.c5.xlarge for training job usage": None,  # among the defaults only
}


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with deployed(tmp_path_factory.mktemp("stacks"), quotas=QUOTAS) as stacks:
        yield stacks


def test_a_quota_on_the_last_of_35_pages_ends_a_run_before_any_job_exists(stacks: Stacks) -> None:
    end = stacks.run("too-many", {"n_replicas": 4})
    assert [end["status"], end.get("error")] == ["FAILED", "QuotaTooSmall"], end
    assert f"the quota {M5} is 3, and this run needs 4" in end["cause"]
    assert stacks.jobs() == []
    history = stacks.client("stepfunctions").get_execution_history(
        executionArn=end["executionArn"], maxResults=1000
    )
    entered = [
        e["stateEnteredEventDetails"]["name"] for e in history["events"] if "stateEnteredEventDetails" in e
    ]
    assert entered.count("ListQuotas") == 35
    assert "WriteRunFile" not in entered


def test_a_default_counts_where_no_value_is_applied(stacks: Stacks) -> None:
    end = stacks.run("by-default", {"n_replicas": 31, "instance_type": "ml.c5.xlarge"})
    assert [end["status"], end.get("error")] == ["FAILED", "QuotaTooSmall"], end
    assert "ml.c5.xlarge for training job usage is 30, and this run needs 31" in end["cause"]


def test_the_smoke_run_sums_up_what_it_cost(stacks: Stacks) -> None:
    end = stacks.run("smoke", {})
    assert end["status"] == "SUCCEEDED", end
    summary = json.loads(end["output"])
    assert summary["billable_s"] == sum(replica["billable_s"] for replica in summary["replicas"]) > 0
    assert {replica["instance_type"] for replica in summary["replicas"]} == {"ml.m5.xlarge"}
