"""The trainer's container image, built in the account by `cdk deploy`: no local Docker needed.

The build context is an S3 asset of `trainer/` and `container/`, and the image's tag is a hash of it.
A custom resource that has the tag among its properties starts a CodeBuild build whenever it changes.
Its Lambda only starts the build: the build itself answers CloudFormation when it ends, because a
Lambda that waits for it is cut off after 15 minutes.
"""

import hashlib
from pathlib import Path
from typing import Final

from aws_cdk import ArnFormat, CustomResource, Duration, IgnoreMode, RemovalPolicy, Stack
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from infra.findings import acknowledge, acknowledge_wildcards
from infra.image_build_spec import build_spec

ROOT: Final = Path(__file__).parent.parent
HANDLER: Final = Path(__file__).parent / "build_handler.py"
BUILD_TIMEOUT: Final = Duration.minutes(45)
# A build that dies before its own commands begin answers nobody; CloudFormation gives up here.
ANSWER_TIMEOUT: Final = Duration.minutes(55)


class TrainerImage(Construct):
    """Builds the image into `repository`; `uri`, by digest, is what a training job names."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        repository: ecr.IRepository,
        base_image: str,
        log_retention: logs.RetentionDays,
        root: Path,
    ) -> None:
        super().__init__(scope, id_)
        context = s3_assets.Asset(
            self,
            "Context",
            path=str(root),
            # The same file that a build on a laptop goes by.
            exclude=(ROOT / ".dockerignore").read_text().split(),
            ignore_mode=IgnoreMode.DOCKER,
        )
        tagged = repository.repository_uri_for_tag(content_tag(context.asset_hash, base_image))
        log_group = logs.LogGroup(self, "Logs", retention=log_retention, removal_policy=RemovalPolicy.DESTROY)

        project = self._project(context, base_image, log_group)
        repository.grant_pull_push(project)
        repository.grant(project, "ecr:DescribeImages")  # the digest of what was pushed
        role = self._starter_role(project, log_group)
        starter = self._starter(role, log_group)
        self.build = CustomResource(
            self,
            "Build",
            resource_type="Custom::TrainerImageBuild",
            service_token=starter.function_arn,
            service_timeout=ANSWER_TIMEOUT,
            properties={
                "Project": project.project_name,
                "ImageUri": tagged,  # whenever this changes, a build starts
            },
        )
        # By digest: the state machine names the very bytes that this deployment built.
        self.uri = repository.repository_uri_for_digest(self.build.get_att_string("Digest"))
        # CloudFormation would otherwise start the build before the policies of both roles exist, or
        # with the context of the deployment before.
        self.build.node.add_dependency(project, role)
        self._acknowledge_findings(project, starter)

    def _project(
        self, context: s3_assets.Asset, base_image: str, log_group: logs.ILogGroup
    ) -> codebuild.Project:
        return codebuild.Project(
            self,
            "Project",
            description="Builds the trainer image of training runs",
            source=codebuild.Source.s3(bucket=context.bucket, path=context.s3_object_key),
            build_spec=codebuild.BuildSpec.from_object_to_yaml(build_spec(base_image)),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.STANDARD_7_0,
                compute_type=codebuild.ComputeType.MEDIUM,  # 7 GB: unpacking torch takes more than 3
                privileged=True,  # a Docker daemon inside the build
            ),
            logging=codebuild.LoggingOptions(
                cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=log_group, prefix="build")
            ),
            grant_report_group_permissions=False,
            timeout=BUILD_TIMEOUT,
        )

    def _starter_role(self, project: codebuild.Project, log_group: logs.LogGroup) -> iam.Role:
        role = iam.Role(
            self,
            "StarterRole",
            description="Starts builds of the trainer image",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="StartBuild", actions=["codebuild:StartBuild"], resources=[project.project_arn]
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="WriteLogs",
                actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                resources=[log_group.log_group_arn],
            )
        )
        return role

    def _starter(self, role: iam.Role, log_group: logs.ILogGroup) -> lambda_.Function:
        return lambda_.Function(
            self,
            "Starter",
            description="Starts the trainer image's build; the build answers CloudFormation",
            role=role,
            runtime=lambda_.Runtime.PYTHON_3_13,
            handler="index.handler",
            code=lambda_.Code.from_inline(HANDLER.read_text()),
            timeout=Duration.minutes(1),
            log_group=log_group,
        )

    def _acknowledge_findings(self, project: codebuild.Project, starter: lambda_.Function) -> None:
        acknowledge_wildcards(
            project,
            ["s3:GetBucket*", "s3:GetObject*", "s3:List*"],
            "CDK's grant of one asset; it names the object, and these actions only read",
        )
        acknowledge_wildcards(
            project,
            [
                Stack.of(self).format_arn(
                    service="logs",
                    resource="log-group",
                    resource_name=f"/aws/codebuild/{project.project_name}:*",
                    arn_format=ArnFormat.COLON_RESOURCE_NAME,
                )
            ],
            "CDK grants the default log group of this project beside the one it is given",
        )
        acknowledge_wildcards(
            project, ["*"], "ecr:GetAuthorizationToken is for a whole registry: it knows no resources"
        )
        acknowledge(project, "CB4", "It produces no artefact to encrypt; ECR encrypts the image itself")
        acknowledge(starter, "L1", "Pinned: a new runtime is tried before it is deployed")


def content_tag(context_hash: str, base_image: str) -> str:
    """The image's tag: a hash of everything that decides its content."""
    return hashlib.sha256(f"{context_hash} {base_image}".encode()).hexdigest()[:20]
