"""Runs stack: what changes from one version to the next, and holds no data."""

import re
from typing import Any

from aws_cdk import CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.replica_role import ReplicaRole
from infra.run_state_machine import RunStateMachine
from infra.settings import Settings
from infra.trainer_image import TrainerImage

STATE_MACHINE_OUTPUT = "StateMachineArn"
BUCKET_OUTPUT = "RunBucketName"


class RunsStack(Stack):
    """Role of the replicas, their image, the state machine; wires them to the bucket."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        settings: Settings,
        bucket: s3.IBucket,
        repository: ecr.IRepository,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            scope, id_, description="Distributed training over S3: runs as Step Functions executions", **kwargs
        )
        removal_policy = RemovalPolicy.DESTROY if settings.sandbox else RemovalPolicy.RETAIN
        log_retention = retention(settings.log_retention_days)
