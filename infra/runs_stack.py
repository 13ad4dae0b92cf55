"""Runs stack: what changes from one version to the next, and holds no data."""

import re
from pathlib import Path
from typing import Any, Final

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.job_options import JobOptions
from infra.network import IsolatedNetwork
from infra.replica_role import ReplicaRole
from infra.run_state_machine import RunStateMachine
from infra.settings import Settings
from infra.trainer_image import ROOT, TrainerImage

STATE_MACHINE_OUTPUT: Final = "StateMachineArn"
BUCKET_OUTPUT: Final = "RunBucketName"

# <account>.dkr.ecr.<region>.amazonaws.com/<repository>:<tag>
_ECR_IMAGE: Final = r"([0-9]{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?/([^:@]+)"


class RunsStack(Stack):
    """Role of the replicas, their image, the state machine; wires them to the bucket.

    `root` is the folder whose `trainer/` and `container/` make the image.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        settings: Settings,
        bucket: s3.IBucket,
        repository: ecr.IRepository,
        root: Path = ROOT,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            scope,
            id_,
            description="Distributed training over S3: runs as Step Functions executions",
            **kwargs,
        )
        built = None if settings.image_uri else self._image(settings, repository, root)
        options = self._job_options(settings, bucket)
        replica = ReplicaRole(
            self,
            "Replica",
            bucket=bucket,
            repository=self._home_of(settings, repository),
            read_uris=settings.read_uris,
            key=bucket.encryption_key,
            secret_arn=settings.secret_arn,
            in_network=bool(options.subnet_ids),
        )
        runs = RunStateMachine(
            self,
            "Runs",
            bucket=bucket,
            image_uri=built.uri if built else str(settings.image_uri),
            replica_role=replica.role,
            options=options,
            log_retention=settings.log_retention,
        )
        if built:  # the image's digest says so too, but only as long as the definition names it
            # Where the build fails, so does the deployment, and runs go on with the image before.
            runs.state_machine.node.add_dependency(built.build)
        self.state_machine = runs.state_machine
        CfnOutput(
            self,
            STATE_MACHINE_OUTPUT,
            value=runs.state_machine.state_machine_arn,
            description="Start an execution of this with run parameters as its input",
        )
        CfnOutput(self, BUCKET_OUTPUT, value=bucket.bucket_name, description="Bucket of all runs")

    def _job_options(self, settings: Settings, bucket: s3.IBucket) -> JobOptions:
        subnets, groups = settings.subnet_ids, settings.security_group_ids
        if settings.isolated_network:
            network = IsolatedNetwork(self, "Network", with_secrets=settings.secret_arn is not None)
            subnets, groups = network.subnet_ids, (network.replicas.security_group_id,)
        key = bucket.encryption_key
        return JobOptions(subnets, groups, key.key_arn if key else None, settings.secret_arn, settings.prefix)

    def _image(self, settings: Settings, repository: ecr.IRepository, root: Path) -> TrainerImage:
        return TrainerImage(
            self,
            "TrainerImage",
            repository=repository,
            base_image=settings.base_image,
            log_retention=settings.log_retention,
            root=root,
        )

    def _home_of(self, settings: Settings, repository: ecr.IRepository) -> ecr.IRepository:
        """The repository the image comes from, which an image of one's own may have elsewhere in ECR."""
        found = re.match(_ECR_IMAGE, settings.image_uri or "")
        if not found:
            return repository
        account, region, name = found.groups()
        arn = self.format_arn(
            service="ecr", account=account, region=region, resource="repository", resource_name=name
        )
        return ecr.Repository.from_repository_attributes(
            self, "ImageRepository", repository_arn=arn, repository_name=name
        )
