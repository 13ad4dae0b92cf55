"""What the state machine asks of Service Quotas, and what it makes of the answers."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from infra.quota_states import MOST_PAGES, PAGE
from infra.replica_states import REDRIVE_REFUSED
from trainer.run_spec import RunSpec

Evaluate = Callable[..., Any]
States = dict[str, dict[str, Any]]

M5 = "ml.m5.xlarge for training job usage"
SPOT = "ml.m5.xlarge for spot training job usage"
G5 = "ml.g5.xlarge for training job usage"
DENIED = None

# As SageMaker's list is: thousands of quotas, of which a run needs one.
OTHERS = {f"ml.other{number}.xlarge for endpoint usage": number for number in range(3450)}


class Walk:
    """The states from InstancesNeeded on, carried out on lists of quotas."""

    def __init__(self, states: States, evaluate: Evaluate) -> None:
        self._states, self._evaluate = states, evaluate
        self.asked: list[str] = []

    def __call__(
        self, parameters: dict[str, Any], applied: dict[str, float] | None, defaults: dict[str, float] | None
    ) -> str:
        """Where it ends: "go on", or the Cause of QuotaTooSmall."""
        lists = {"ListQuotas": applied, "ListDefaultQuotas": defaults}
        variables: dict[str, Any] = {"parameters": RunSpec.model_validate(parameters).model_dump()}
        name = "InstancesNeeded"
        while name not in ("WriteRunFile", "QuotaTooSmall"):
            state = self._states[name]
            if state["Type"] == "Choice":
                holds = [self._evaluate(c["Condition"], **variables) for c in state["Choices"]]
                name = next(
                    (c["Next"] for c, yes in zip(state["Choices"], holds, strict=True) if yes),
                    state["Default"],
                )
                continue
            result = None
            if state["Type"] == "Task":
                self.asked.append(name)
                quotas = lists[name]
                if quotas is None:
                    (catcher,) = state["Catch"]
                    assert catcher["ErrorEquals"] == ["States.ALL"]
                    name = catcher["Next"]
                    continue
                result = _page(quotas, self._evaluate(state["Arguments"], **variables))
            variables |= self._evaluate(state.get("Assign", {}), result=result, **variables)
            name = state["Next"]
        if name == "QuotaTooSmall":
            return str(self._evaluate(self._states[name]["Cause"], **variables))
        return "go on"


def _page(quotas: dict[str, float], arguments: dict[str, Any]) -> dict[str, Any]:
    assert arguments.keys() <= {"ServiceCode", "MaxResults", "NextToken"}
    assert [arguments["ServiceCode"], arguments["MaxResults"]] == ["sagemaker", PAGE]
    begin = int(arguments.get("NextToken", 0))
    names = list(quotas)[begin : begin + PAGE]
    page = {"Quotas": [{"QuotaName": name, "Value": quotas[name], "QuotaCode": "L-1"} for name in names]}
    more = begin + PAGE < len(quotas)
    return page | ({"NextToken": str(begin + PAGE)} if more else {})


@pytest.fixture
def walk(states: States, evaluate: Evaluate) -> Walk:
    return Walk(states, evaluate)


def test_a_quota_on_the_last_of_35_pages_is_found(walk: Walk) -> None:
    cause = walk({"n_replicas": 3}, {**OTHERS, M5: 2}, {})
    assert cause == (
        f"the quota {M5} is 2, and this run needs 3. Nothing was started. Ask for more in the console: "
        f"Service Quotas, Amazon SageMaker. {REDRIVE_REFUSED}"
    )
    assert walk.asked == ["ListQuotas"] * math.ceil(len(OTHERS) / PAGE + 0.01)
    assert len(walk.asked) == 35


def test_what_is_found_early_is_not_looked_for_further(walk: Walk) -> None:
    assert walk({"n_replicas": 2}, {M5: 2, **OTHERS}, {}) == "go on"
    assert walk.asked == ["ListQuotas"]


@pytest.mark.parametrize(
    ("parameters", "applied", "defaults", "short"),
    [
        ({"n_replicas": 2}, {M5: 2.0}, {M5: 0}, []),
        ({"n_replicas": 2}, {M5: 0}, {M5: 9}, [M5]),  # an applied value is worth more than a default
        ({"n_replicas": 2}, {SPOT: 0}, {M5: 1}, [M5]),  # not among the applied: the default counts
        ({"n_replicas": 2}, {SPOT: 0}, {M5: 2}, []),
        ({"n_replicas": 2, "use_spot": True}, {M5: 0, SPOT: 2}, {}, []),
        ({"n_replicas": 2, "use_spot": True}, {M5: 9, SPOT: 1}, {}, [SPOT]),
        ({"n_replicas": 2}, {}, {}, []),  # in neither list: cannot tell
        ({"n_replicas": 2}, DENIED, {M5: 0}, []),  # may not ask: a default says nothing of this account
        ({"n_replicas": 2}, {}, DENIED, []),
        ({"n_replicas": 2}, OTHERS, DENIED, []),
    ],
)
def test_too_small_is_what_is_known_to_be_so(
    parameters: dict[str, Any],
    applied: dict[str, float] | None,
    defaults: dict[str, float] | None,
    short: list[str],
    walk: Walk,
) -> None:
    answer = walk(parameters, applied, defaults)
    assert [name for name in (M5, SPOT, G5) if f"quota {name} is" in answer] == short
    assert (answer == "go on") is not short


def test_several_instance_types_are_counted_by_the_ranks_that_get_them(
    walk: Walk, states: States, evaluate: Evaluate
) -> None:
    types = {"n_replicas": 5, "instance_type": "ml.m5.xlarge,ml.g5.xlarge"}
    assert walk(types, {M5: 3, G5: 2}, {}) == "go on"
    assert f"{M5} is 2, and this run needs 3; the quota {G5} is 1, and this run needs 2." in walk(
        types, {M5: 2, G5: 1}, {}
    )
    # What one page has told is not forgotten on the next, nor replaced by a default.
    assert "quota ml.g5.xlarge" in walk(types, {M5: 3, **OTHERS, G5: 1}, {})
    assert walk(types, {M5: 3, **OTHERS}, {M5: 0, G5: 2}) == "go on"
    parameters = RunSpec.model_validate(types).model_dump()
    assign = states["Replica"]["Assign"]["instance_type"]
    given = [evaluate(assign, input_={"rank": rank}, parameters=parameters) for rank in range(5)]
    assert given == ["ml.m5.xlarge", "ml.g5.xlarge", "ml.m5.xlarge", "ml.g5.xlarge", "ml.m5.xlarge"]


def test_a_list_without_an_end_keeps_no_run_from_starting(states: States, evaluate: Evaluate) -> None:
    again = states["ListQuotasDone?"]["Choices"][1]
    assert again["Next"] == "ListQuotas"
    for pages, goes_on in ((1, True), (MOST_PAGES, False)):
        assert evaluate(again["Condition"], quota_token="more", quota_pages=pages) is goes_on
    assert evaluate(again["Condition"], quota_token="", quota_pages=1) is False


def test_a_page_leaves_only_what_is_needed(states: States, evaluate: Evaluate) -> None:
    """A page is 60 KB, and variables and output share 256 KiB with all else."""
    for name in ("ListQuotas", "ListDefaultQuotas"):
        assign = evaluate(
            states[name]["Assign"],
            result=_page({**OTHERS}, {"ServiceCode": "sagemaker", "MaxResults": PAGE}),
            quota_needed={M5: 2},
            quota_found={},
            quota_pages=0,
        )
        assert assign == {"quota_found": {}, "quota_token": "100", "quota_pages": 1}
        assert states[name]["Output"] == {"run_id": "{% $run_id %}"}
        (retry,) = states[name]["Retry"]
        assert retry["ErrorEquals"] == ["ServiceQuotas.TooManyRequestsException"]
