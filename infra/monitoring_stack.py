"""Monitoring stack: what a run's owner looks at, and what tells them when they don't look.

SageMaker keeps a replica's metrics (layout.METRICS) in the name space /aws/sagemaker/TrainingJobs, under
the dimension TrainingJobName; job names end in the rank, and so SEARCH expressions show every job that
runs without knowing its name. Nothing here is needed to train: the stack can go and come back.
"""

from typing import Any, Final

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.budget import monthly_budget
from infra.findings import acknowledge
from infra.run_events import tell_of_runs
from infra.run_graphs import FEWEST_TOKENS_PER_S, LONGEST_WAIT_S, dashboard
from infra.run_queries import save_queries
from infra.settings import Settings

TOPIC_OUTPUT: Final = "NotificationsTopicArn"
NO_PROGRESS: Final = Duration.minutes(30)


class MonitoringStack(Stack):
    """Dashboard, alarms, notifications, saved queries, budget."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        settings: Settings,
        state_machine: sfn.IStateMachine,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            scope, id_, description="Distributed training over S3: dashboard, alarms and messages", **kwargs
        )
        topic = self._topic(settings)
        job_failed = tell_of_runs(self, state_machine, topic)
        graphs = dashboard(self, state_machine, job_failed)
        self._alarms(state_machine, topic)
        save_queries(self, settings.prefix)
        if settings.monthly_budget_usd:
            monthly_budget(self, settings)
        CfnOutput(
            self, TOPIC_OUTPUT, value=topic.topic_arn, description="Messages of runs and alarms come here"
        )
        CfnOutput(self, "DashboardName", value=graphs.dashboard_name, description="In CloudWatch, Dashboards")

    def _topic(self, settings: Settings) -> sns.Topic:
        topic = sns.Topic(self, "Notifications", enforce_ssl=True, display_name=f"{settings.prefix} runs")
        # A topic with a policy of its own has lost the one that let the account's alarms publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AlarmsPublish",
                principals=[
                    iam.ServicePrincipal(
                        "cloudwatch.amazonaws.com",
                        conditions={"StringEquals": {"aws:SourceAccount": self.account}},
                    )
                ],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
            )
        )
        if settings.notification_email:
            topic.add_subscription(subscriptions.EmailSubscription(settings.notification_email))
        # No customer key: CloudWatch and EventBridge would each need a statement in its policy.
        acknowledge(topic, "SNS2", "A message says that a run has ended; there is no data in it")
        return topic

    def _alarms(self, state_machine: sfn.IStateMachine, topic: sns.ITopic) -> None:
        failed = state_machine.metric_failed(period=Duration.minutes(5), statistic="Sum")
        alarms = {
            "RunFailed": cloudwatch.Alarm(
                self,
                "RunFailed",
                alarm_description="A run has failed: the execution's Cause says which rank, why, and where "
                "its log is (docs/operations.md)",
                metric=failed,
                threshold=1,
                evaluation_periods=1,
                comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
                treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            ),
            "RoundsWait": self._insight_alarm(
                "RoundsWait",
                LONGEST_WAIT_S,
                threshold=600,
                above=True,
                periods=2,
                description="Replicas wait more than ten minutes of a round for a peer: look for the slowest "
                "rank on the dashboard",
            ),
            "NoProgress": self._insight_alarm(
                "NoProgress",
                FEWEST_TOKENS_PER_S,
                threshold=0,
                above=False,
                periods=int(NO_PROGRESS.to_minutes() / 5),
                description="A replica that reports has trained on nothing for half an hour",
            ),
        }
        for alarm in alarms.values():
            alarm.add_alarm_action(actions.SnsAction(topic))

    def _insight_alarm(
        self, id_: str, query: str, *, threshold: float, above: bool, periods: int, description: str
    ) -> cloudwatch.Alarm:
        """On a Metrics Insights query: an alarm takes no SEARCH, and jobs' names can't be foreseen."""
        comparison = cloudwatch.ComparisonOperator
        return cloudwatch.Alarm(
            self,
            id_,
            alarm_description=description,
            metric=cloudwatch.MathExpression(expression=query, using_metrics={}, period=Duration.minutes(5)),
            threshold=threshold,
            evaluation_periods=periods,
            comparison_operator=comparison.GREATER_THAN_THRESHOLD
            if above
            else comparison.LESS_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
