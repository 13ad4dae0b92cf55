"""The role a replica's training job runs under, each statement written out.

CDK's `grant_read_write` would add deletion and wildcards. A replica may add to a run, and delete
its checkpoints, which SageMaker mirrors from the container's folder; it can't rewrite history
anywhere else, because it may not delete, and its puts to the log are create-only.
"""

from collections.abc import Sequence

from aws_cdk import ArnFormat, Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.findings import Statements, add_statements
from trainer import layout

# Where SageMaker puts the output and the metrics of every training job.
JOB_LOG_GROUP = "/aws/sagemaker/TrainingJobs"

RUN_PREFIXES = (
    layout.RENDEZVOUS_PREFIX,
    layout.DATA_PREFIX,
    layout.CHECKPOINT_PREFIX,
    layout.OUTPUT_PREFIX,
)


class ReplicaRole(Construct):
    """Execution role of the training jobs, for SageMaker alone, and only for jobs of this account."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        bucket: s3.IBucket,
        repository: ecr.IRepository,
        read_uris: Sequence[str] = (),
        key: kms.IKey | None = None,
        secret_arn: str | None = None,
        in_network: bool = False,
    ) -> None:
        super().__init__(scope, id_)
        stack = Stack.of(self)
        jobs = stack.format_arn(service="sagemaker", resource="training-job", resource_name="*")
        # Without the two conditions SageMaker could be talked into using this role for someone
        # else's job ("Cross-Service Confused Deputy Prevention", SageMaker developer guide).
        self.role = iam.Role(
            self,
            "Role",
            description="What a replica of a training run may do",
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com",
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {"aws:SourceArn": jobs},
                },
            ),
        )
        add_statements(self.role, _bucket_statements(bucket))
        add_statements(self.role, _log_statements(stack))
        add_statements(self.role, _image_statements(repository))
        add_statements(self.role, _optional_statements(stack, read_uris, key, secret_arn))
        if in_network:
            add_statements(self.role, _network_statements())


def _bucket_statements(bucket: s3.IBucket) -> Statements:
    any_run = "One role serves all runs, and a run's id is known only when it starts"
    return [
        (
            iam.PolicyStatement(
                sid="AddToRuns",
                # Abort: a multipart upload that fails is taken back at once, not by the lifecycle rule.
                actions=["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"],
                resources=[bucket.arn_for_objects(f"{prefix}/*") for prefix in RUN_PREFIXES],
            ),
            any_run,
        ),
        (
            iam.PolicyStatement(
                sid="ReadInputs",
                actions=["s3:GetObject"],
                resources=[bucket.arn_for_objects(f"{layout.INPUT_PREFIX}/*")],
            ),
            "Data sets lie wherever their uploaders put them below this prefix",
        ),
        (
            iam.PolicyStatement(
                sid="ReplaceCheckpoints",
                actions=["s3:DeleteObject"],
                resources=[bucket.arn_for_objects(f"{layout.CHECKPOINT_PREFIX}/*")],
            ),
            any_run,
        ),
        (
            iam.PolicyStatement(
                # Also what makes S3 answer 404 and not 403 for a key that isn't there yet.
                sid="ListRuns",
                actions=["s3:ListBucket"],
                resources=[bucket.bucket_arn],
                conditions={
                    "StringLike": {
                        "s3:prefix": [f"{prefix}/*" for prefix in (*RUN_PREFIXES, layout.INPUT_PREFIX)]
                    }
                },
            ),
            None,
        ),
    ]


def _optional_statements(
    stack: Stack, read_uris: Sequence[str], key: kms.IKey | None, secret_arn: str | None
) -> Statements:
    """What settings add."""
    for uri in read_uris:
        name, _, prefix = uri.removeprefix("s3://").partition("/")
        arn = stack.format_arn(service="s3", region="", account="", resource=name)
        yield (
            iam.PolicyStatement(actions=["s3:GetObject"], resources=[f"{arn}/{prefix}*"]),
            "The setting read_uris names a prefix, and objects are below it",
        )
        yield (
            iam.PolicyStatement(
                actions=["s3:ListBucket"],
                resources=[arn],
                conditions={"StringLike": {"s3:prefix": [f"{prefix}*"]}},
            ),
            None,
        )
    if key is not None:
        yield (
            iam.PolicyStatement(
                sid="UseKey",
                actions=["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey"],
                resources=[key.key_arn],
            ),
            None,
        )
        yield (
            iam.PolicyStatement(
                # SageMaker hands the use of the key on to EBS, for the volume it attaches.
                sid="LendKeyToVolumes",
                actions=["kms:CreateGrant"],
                resources=[key.key_arn],
                conditions={"Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
            None,
        )
    if secret_arn is not None:
        yield (
            iam.PolicyStatement(
                sid="ReadSecret", actions=["secretsmanager:GetSecretValue"], resources=[secret_arn]
            ),
            None,
        )


def _network_statements() -> Statements:
    """SageMaker puts a network interface of a job into the network it is to run in, and takes it out.

    "Give SageMaker Training Jobs Access to Resources in Your Amazon VPC" (developer guide).
    """
    return [
        (
            iam.PolicyStatement(
                sid="AttachToNetwork",
                actions=[
                    "ec2:CreateNetworkInterface",
                    "ec2:CreateNetworkInterfacePermission",
                    "ec2:DeleteNetworkInterface",
                    "ec2:DeleteNetworkInterfacePermission",
                    "ec2:DescribeDhcpOptions",
                    "ec2:DescribeNetworkInterfaces",
                    "ec2:DescribeSecurityGroups",
                    "ec2:DescribeSubnets",
                    "ec2:DescribeVpcs",
                ],
                resources=["*"],
            ),
            "The interfaces get their ids when they are made, and the Describe actions know no resources",
        )
    ]


def _log_statements(stack: Stack) -> Statements:
    group = stack.format_arn(
        service="logs",
        resource="log-group",
        resource_name=JOB_LOG_GROUP,
        arn_format=ArnFormat.COLON_RESOURCE_NAME,
    )
    return [
        (
            iam.PolicyStatement(
                sid="WriteLogs",
                actions=[
                    "logs:CreateLogGroup",
                    "logs:CreateLogStream",
                    "logs:DescribeLogStreams",
                    "logs:PutLogEvents",
                ],
                resources=[group, f"{group}:*"],
            ),
            "SageMaker names the streams of this one group, after the jobs",
        ),
        (
            iam.PolicyStatement(
                sid="WriteMetrics",
                actions=["cloudwatch:PutMetricData"],
                resources=["*"],
                conditions={"StringEquals": {"cloudwatch:namespace": JOB_LOG_GROUP}},
            ),
            "PutMetricData knows no resources; the condition on its name space narrows it",
        ),
    ]


def _image_statements(repository: ecr.IRepository) -> Statements:
    return [
        (
            iam.PolicyStatement(
                sid="PullTrainerImage",
                actions=[
                    "ecr:BatchCheckLayerAvailability",
                    "ecr:BatchGetImage",
                    "ecr:GetDownloadUrlForLayer",
                ],
                resources=[repository.repository_arn],
            ),
            None,
        ),
        (
            iam.PolicyStatement(
                sid="SignInToRegistry", actions=["ecr:GetAuthorizationToken"], resources=["*"]
            ),
            "A token is for the whole registry of an account: the action knows no resources",
        ),
    ]
