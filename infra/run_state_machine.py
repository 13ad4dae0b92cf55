"""The state machine of a run: an execution is a run, its name the run's id, its input the parameters."""

from typing import Final

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra import run_objects
from infra.findings import Statements, acknowledge_wildcards, add_statements
from infra.job_options import JobOptions
from infra.run_states import run_states

VENDED_LOGS: Final = "/aws/vendedlogs"


class RunStateMachine(Construct):
    """Standard, since Express machines can't wait for a job; JSONata throughout."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        bucket: s3.IBucket,
        image_uri: str,
        replica_role: iam.IRole,
        options: JobOptions,
        log_retention: logs.RetentionDays,
    ) -> None:
        super().__init__(scope, id_)
        self.role = self._role(bucket, replica_role)
        # The beginning of the name is what lets Step Functions write without growing the account's
        # one resource policy of log delivery, which ends at 5,120 characters ("Logging using
        # CloudWatch Logs", Step Functions guide). The rest is the stack's: two stages don't meet.
        self.log_group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=f"{VENDED_LOGS}/states/{Stack.of(self).stack_name}",
            retention=log_retention,
            removal_policy=RemovalPolicy.DESTROY,
        )
        self.state_machine = sfn.StateMachine(
            self,
            "Runs",
            comment="Trains a model on N replicas, one training job each, that share only a bucket",
            query_language=sfn.QueryLanguage.JSONATA,
            role=self.role,
            definition_body=sfn.DefinitionBody.from_chainable(
                run_states(
                    self,
                    bucket_name=bucket.bucket_name,
                    image_uri=image_uri,
                    role_arn=replica_role.role_arn,
                    options=options,
                )
            ),
            logs=sfn.LogOptions(
                destination=self.log_group, level=sfn.LogLevel.ALL, include_execution_data=True
            ),
            tracing_enabled=True,
        )

    def _role(self, bucket: s3.IBucket, replica_role: iam.IRole) -> iam.Role:
        stack = Stack.of(self)
        role = iam.Role(
            self,
            "Role",
            description="What the state machine of training runs may do",
            assumed_by=iam.ServicePrincipal(
                "states.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": stack.account}}
            ),
        )
        add_statements(role, _job_statements(stack, replica_role))
        add_statements(role, _bucket_statements(bucket))
        # CDK's own statements for log delivery and X-Ray.
        acknowledge_wildcards(
            role, ["*"], "Log delivery and X-Ray are granted by account: their actions know no resources"
        )
        return role


def _job_statements(stack: Stack, replica_role: iam.IRole) -> Statements:
    """What createTrainingJob.sync needs ("IAM policies for SageMaker", Step Functions guide)."""
    jobs = stack.format_arn(service="sagemaker", resource="training-job", resource_name="*")
    rule = stack.format_arn(
        service="events",
        resource="rule",
        resource_name="StepFunctionsGetEventsForSageMakerTrainingJobsRule",
    )
    return [
        (
            iam.PolicyStatement(
                # AddTags: Step Functions tags the jobs it starts, besides the tags of ours.
                sid="RunReplicas",
                actions=[
                    "sagemaker:AddTags",
                    "sagemaker:CreateTrainingJob",
                    "sagemaker:DescribeTrainingJob",
                    "sagemaker:StopTrainingJob",
                ],
                resources=[jobs],
            ),
            "A job is named after its run, which its user names",
        ),
        (
            iam.PolicyStatement(
                sid="HandOverReplicaRole",
                actions=["iam:PassRole"],
                resources=[replica_role.role_arn],
                conditions={"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
            ),
            None,
        ),
        (
            iam.PolicyStatement(
                # The rule by which Step Functions learns that a job has ended; the name is AWS's own.
                sid="HearOfJobsEnding",
                actions=["events:DescribeRule", "events:PutRule", "events:PutTargets"],
                resources=[rule],
            ),
            None,
        ),
        (
            iam.PolicyStatement(
                sid="ReadQuotas",
                actions=["servicequotas:ListAWSDefaultServiceQuotas", "servicequotas:ListServiceQuotas"],
                resources=["*"],
            ),
            "Lists of a whole service's quotas: the actions know no resources",
        ),
    ]


def _bucket_statements(bucket: s3.IBucket) -> Statements:
    any_run = "One state machine serves all runs, and a run's id is known only when it starts"
    return [
        (
            iam.PolicyStatement(
                sid="SteerRuns",
                actions=["s3:PutObject"],
                resources=[bucket.arn_for_objects(key) for key in run_objects.WRITTEN],
            ),
            any_run,
        ),
        (
            iam.PolicyStatement(
                sid="ReadResults",
                actions=["s3:GetObject"],
                resources=[bucket.arn_for_objects(key) for key in run_objects.READ],
            ),
            any_run,
        ),
        *(
            [
                (
                    iam.PolicyStatement(
                        sid="UseKey",
                        actions=["kms:Decrypt", "kms:GenerateDataKey"],
                        resources=[bucket.encryption_key.key_arn],
                    ),
                    None,
                )
            ]
            if bucket.encryption_key
            else []
        ),
    ]
