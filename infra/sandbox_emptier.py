"""In a sandbox, `cdk destroy` leaves nothing: the bucket is emptied before it is deleted."""

from pathlib import Path
from typing import Final

from aws_cdk import CustomResource, Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.findings import acknowledge, add_statements

HANDLER: Final = Path(__file__).parent / "empty_bucket_handler.py"


class SandboxEmptier(Construct):
    """A custom resource that depends on the bucket, and so is deleted, and asked to empty it, first."""

    def __init__(self, scope: Construct, id_: str, *, bucket: s3.Bucket) -> None:
        super().__init__(scope, id_)
        log_group = logs.LogGroup(
            self, "Logs", retention=logs.RetentionDays.ONE_WEEK, removal_policy=RemovalPolicy.DESTROY
        )
        role = self._role(bucket, log_group)
        function = lambda_.Function(
            self,
            "Function",
            description="Empties the bucket of a sandbox that is being deleted",
            role=role,
            runtime=lambda_.Runtime.PYTHON_3_13,
            handler="index.handler",
            code=lambda_.Code.from_inline(HANDLER.read_text()),
            timeout=Duration.minutes(15),
            log_group=log_group,
        )
        acknowledge(function, "L1", "Pinned: a new runtime is tried before it is deployed")
        resource = CustomResource(
            self,
            "Empty",
            resource_type="Custom::EmptySandbox",
            service_token=function.function_arn,
            properties={"Bucket": bucket.bucket_name},
        )
        # The rights must outlive the emptying.
        resource.node.add_dependency(role, bucket)

    def _role(self, bucket: s3.Bucket, log_group: logs.LogGroup) -> iam.Role:
        role = iam.Role(
            self,
            "Role",
            description="Empties the bucket of a sandbox",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        )
        objects = ["s3:DeleteObject", "s3:AbortMultipartUpload"]
        listing = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
        add_statements(
            role,
            [
                (
                    iam.PolicyStatement(
                        sid="DeleteObjects", actions=objects, resources=[bucket.arn_for_objects("*")]
                    ),
                    "Every object of the one bucket goes",
                ),
                (iam.PolicyStatement(sid="ListBucket", actions=listing, resources=[bucket.bucket_arn]), None),
                (
                    iam.PolicyStatement(
                        sid="WriteLogs",
                        actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                        resources=[log_group.log_group_arn],
                    ),
                    None,
                ),
            ],
        )
        return role
