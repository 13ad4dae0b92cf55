"""What is shown and told, and that it goes by the names and lines the trainer really has."""

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from infra.run_graphs import queried, searched
from tests.support.templates import Template, properties
from trainer import layout
from trainer.metrics import RoundMetrics

Synth = Callable[..., dict[str, Template]]
States = dict[str, dict[str, Any]]


class _Manager:
    """What RoundMetrics asks of a manager."""

    class log:  # noqa: N801
        keys = layout.RunLayout("run")

        class store:  # noqa: N801
            @staticmethod
            def find(_key: str) -> None:
                return None

    def later(self, _write: object) -> None: ...

    def report(self, **_: object) -> None: ...


def test_every_metric_definition_finds_its_value_in_the_trainers_own_line(
    states: States, job_request: Any, caplog: pytest.LogCaptureFixture
) -> None:
    values = {name: float(f"1.5e{3 * number - 9}") for number, name in enumerate(layout.METRICS)}
    with caplog.at_level(logging.INFO, logger="metrics"):
        RoundMetrics(_Manager(), 3).report(round_index=7, inner_step=80, **values)  # type: ignore[arg-type]
    formatter = logging.Formatter("%(asctime)s %(name)s %(message)s")  # as replica_entrypoint has it
    line = formatter.format(caplog.records[-1])
    definitions = job_request(states)["AlgorithmSpecification"]["MetricDefinitions"]
    assert [definition["Name"] for definition in definitions] == list(layout.METRICS)
    for definition in definitions:
        found = re.findall(definition["Regex"], line)
        assert [float(text) for text in found] == [values[definition["Name"]]], definition
        assert not re.search(definition["Regex"], line.replace(f"{definition['Name']}=", "other="))


def test_the_dashboard_shows_what_replicas_report(templates: dict[str, Template]) -> None:
    (board,) = properties(templates["monitoring"], "AWS::CloudWatch::Dashboard").values()
    text = _text(board["DashboardBody"])
    for metric in ("train_loss", "eval_loss", "exchange_s", "wait_s", "tokens_per_s"):
        assert json.dumps(searched(metric))[1:-1] in text
    for word in ("ExecutionsStarted", "ExecutionsFailed", "MatchedEvents", "CPUUtilization", "SORT("):
        assert word in text


def _text(joined: Any) -> str:
    return "".join(part if isinstance(part, str) else "REF" for part in joined["Fn::Join"][1])


def test_a_graph_of_a_metric_that_no_replica_reports_is_refused() -> None:
    for expression in (searched, lambda name: queried("MAX", name)):
        with pytest.raises(KeyError):
            expression("train_loss_typo")


def test_alarms_are_three_and_tell_the_topic(templates: dict[str, Template]) -> None:
    monitoring = templates["monitoring"]
    (topic,) = properties(monitoring, "AWS::SNS::Topic")
    alarms = properties(monitoring, "AWS::CloudWatch::Alarm").values()
    assert all(alarm["AlarmActions"] == [{"Ref": topic}] for alarm in alarms)
    assert all(alarm["TreatMissingData"] == "notBreaching" for alarm in alarms)
    watched = sorted(alarm.get("MetricName") or alarm["Metrics"][0]["Expression"] for alarm in alarms)
    assert watched == [
        "ExecutionsFailed",
        'SELECT MAX(wait_s) FROM SCHEMA("/aws/sagemaker/TrainingJobs", TrainingJobName)',
        'SELECT MIN(tokens_per_s) FROM SCHEMA("/aws/sagemaker/TrainingJobs", TrainingJobName)',
    ]


def test_alarms_and_rules_may_publish_and_nobody_else(templates: dict[str, Template]) -> None:
    """The policy that a topic has by default lets alarms in; a policy of its own must say so."""
    (policy,) = properties(templates["monitoring"], "AWS::SNS::TopicPolicy").values()
    allowed = [s for s in policy["PolicyDocument"]["Statement"] if s["Effect"] == "Allow"]
    assert {s["Principal"]["Service"] for s in allowed} == {
        "cloudwatch.amazonaws.com",
        "events.amazonaws.com",
    }
    assert {s["Action"] for s in allowed} == {"sns:Publish"}


def test_messages_are_of_our_runs_and_our_jobs(templates: dict[str, Template]) -> None:
    rules = properties(templates["monitoring"], "AWS::Events::Rule").values()
    patterns = {rule["EventPattern"]["source"][0]: rule["EventPattern"]["detail"] for rule in rules}
    assert list(patterns["aws.states"]["stateMachineArn"][0]) == ["Fn::ImportValue"]
    assert patterns["aws.states"]["status"] == ["SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED"]
    assert patterns["aws.sagemaker"] == {
        "TrainingJobStatus": ["Failed"],
        "Tags": {"diloco:run": [{"exists": True}]},
    }


def test_a_mail_and_a_budget_are_for_those_who_ask(templates: dict[str, Template], synth: Synth) -> None:
    assert not properties(templates["monitoring"], "AWS::SNS::Subscription")
    assert not properties(templates["monitoring"], "AWS::Budgets::Budget")
    asked = synth(image_uri="a/b:c", notification_email="me@example.com", monthly_budget_usd="500")[
        "monitoring"
    ]
    (subscription,) = properties(asked, "AWS::SNS::Subscription").values()
    assert [subscription["Protocol"], subscription["Endpoint"]] == ["email", "me@example.com"]
    (budget,) = properties(asked, "AWS::Budgets::Budget").values()
    assert budget["Budget"] == {
        "BudgetType": "COST",
        "TimeUnit": "MONTHLY",
        "BudgetLimit": {"Amount": 500, "Unit": "USD"},
        "CostFilters": {"TagKeyValue": ["user:application$diloco"]},
    }
    told = budget["NotificationsWithSubscribers"]
    assert [notification["Notification"]["Threshold"] for notification in told] == [80, 100]


def test_saved_queries_read_the_replicas_log_by_run(templates: dict[str, Template]) -> None:
    queries = properties(templates["monitoring"], "AWS::Logs::QueryDefinition").values()
    assert sorted(query["Name"] for query in queries) == [
        "diloco/a run's events", "diloco/a run's rounds", "diloco/why a run's replicas ended",
    ]  # fmt: skip
    for query in queries:
        assert query["LogGroupNames"] == ["/aws/sagemaker/TrainingJobs"]
        assert "| filter @logStream like /^RUN_ID/\n" in query["QueryString"]


def test_every_resource_and_every_job_carries_the_cost_allocation_tag(
    templates: dict[str, Template], states: States, job_request: Any
) -> None:
    tag = {"Key": "application", "Value": "diloco"}
    for template in templates.values():
        for resource in template["Resources"].values():
            tags = resource.get("Properties", {}).get("Tags")
            assert tags is None or (
                tags.get("application") == "diloco" if isinstance(tags, dict) else tag in tags
            )
    assert tag in job_request(states)["Tags"]
