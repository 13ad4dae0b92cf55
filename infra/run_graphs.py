"""The dashboard: is it learning, is it fast, who is slow, what does it cost."""

from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.replica_role import JOB_LOG_GROUP
from infra.run_events import EVENTS_NAMESPACE, JOB_FAILED_METRIC
from trainer.layout import METRICS

# SageMaker puts metrics into the name space of the same name as its log group.
NAMESPACE: Final = JOB_LOG_GROUP
# Its dimension for what MetricDefinitions find; what instances report themselves has another.
JOB: Final = "TrainingJobName"
HOST: Final = "Host"
_PERIOD: Final = Duration.minutes(1)


def searched(metric: str, statistic: str = "Average") -> str:
    """A line a job. Raises KeyError for a metric that no replica reports."""
    METRICS[metric]
    return f"SEARCH('{{{NAMESPACE},{JOB}}} MetricName=\"{metric}\"', '{statistic}', 60)"


def queried(aggregate: str, metric: str) -> str:
    """One number over all jobs, for alarms."""
    METRICS[metric]
    return f'SELECT {aggregate}({metric}) FROM SCHEMA("{NAMESPACE}", {JOB})'  # noqa: S608  of names of ours


LONGEST_WAIT_S: Final = queried("MAX", "wait_s")
FEWEST_TOKENS_PER_S: Final = queried("MIN", "tokens_per_s")


def dashboard(
    scope: Construct, state_machine: sfn.IStateMachine, job_failed: events.IRule
) -> cloudwatch.Dashboard:
    board = cloudwatch.Dashboard(scope, "Dashboard", default_interval=Duration.hours(12))
    board.add_widgets(
        _by_rank("Training loss by rank", searched("train_loss"), "nats per token"),
        _by_rank("Held-out loss of the shared weights", searched("eval_loss"), "nats per token"),
    )
    board.add_widgets(
        _by_rank("Exchange, from snapshot to mean", searched("exchange_s"), "seconds a round"),
        _by_rank(
            "Share of the exchange spent waiting",
            f"{searched('wait_s')} / {searched('exchange_s')}",
            "0 to 1; the slowest rank waits least",
        ),
    )
    board.add_widgets(
        _by_rank("Tokens a second by rank", searched("tokens_per_s"), "tokens/s"),
        _by_rank("Slowest ranks", f"SORT({searched('tokens_per_s')}, AVG, ASC, 3)", "tokens/s"),
    )
    hour = Duration.hours(1)
    board.add_widgets(
        cloudwatch.GraphWidget(
            title="Runs",
            width=12,
            left=[
                state_machine.metric_started(period=hour, label="started"),
                state_machine.metric_succeeded(period=hour, label="succeeded"),
                state_machine.metric_failed(period=hour, label="failed"),
                state_machine.metric_aborted(period=hour, label="stopped"),
            ],
        ),
        cloudwatch.GraphWidget(
            title="Jobs that failed, and hours that replicas report from (about what is billed)",
            width=12,
            left=[
                cloudwatch.Metric(
                    namespace=EVENTS_NAMESPACE,
                    metric_name=JOB_FAILED_METRIC,
                    dimensions_map={"RuleName": job_failed.rule_name},
                    statistic="Sum",
                    period=hour,
                    label="failed jobs",
                )
            ],
            right=[
                cloudwatch.MathExpression(
                    # A job that has an instance reports its CPU once a minute.
                    expression=f"SUM(SEARCH('{{{NAMESPACE},{HOST}}} MetricName=\"CPUUtilization\"', "
                    "'SampleCount', 3600)) / 60",
                    using_metrics={},
                    period=hour,
                    label="instance hours",
                )
            ],
        ),
    )
    return board


def _by_rank(title: str, expression: str, unit: str) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(
        title=title,
        width=12,
        left=[cloudwatch.MathExpression(expression=expression, using_metrics={}, period=_PERIOD, label="")],
        left_y_axis=cloudwatch.YAxisProps(label=unit, show_units=False),
        view=cloudwatch.GraphWidgetView.TIME_SERIES,
    )
