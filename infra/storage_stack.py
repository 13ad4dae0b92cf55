"""Storage stack: what keeps data, and so is deployed once and hardly ever changed."""

from typing import Any

from aws_cdk import Duration, Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_kms as kms
from constructs import Construct

from infra.run_bucket import RunBucket
from infra.sandbox_emptier import SandboxEmptier
from infra.settings import Settings


class StorageStack(Stack):
    """The run bucket and the repository of trainer images.

    Other stacks import the two names and nothing else: CloudFormation refuses to change an
    exported value while it is in use, and these never change.
    """

    def __init__(self, scope: Construct, id_: str, *, settings: Settings, **kwargs: Any) -> None:
        super().__init__(
            scope, id_, description="Distributed training over S3: the data of all runs", **kwargs
        )
        key = self._key(settings) if settings.customer_key else None
        self.run_bucket = RunBucket(
            self,
            "RunBucket",
            payload_days=settings.payload_days,
            removal_policy=settings.removal_policy,
            key=key,
        )
        if settings.sandbox:
            SandboxEmptier(self, "Emptier", bucket=self.run_bucket.bucket)
        # A tag names the content of a build, so it never moves: a run keeps the code it began with. No rule
        # takes tagged images away, since the one in use may be the oldest of all: a relaunch in the fourth
        # week of a run pulls what the run began with. They cost ten cents a gigabyte and month.
        self.repository = ecr.Repository(
            self,
            "TrainerRepository",
            encryption_key=key,
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            removal_policy=settings.removal_policy,
            empty_on_delete=settings.sandbox,
        )
        self.repository.add_lifecycle_rule(
            description="Pushes that were overtaken leave layers without a tag",
            tag_status=ecr.TagStatus.UNTAGGED,
            max_image_age=Duration.days(30),
        )

    def _key(self, settings: Settings) -> kms.Key:
        return kms.Key(
            self,
            "Key",
            description="Bucket, images and volumes of training runs",
            enable_key_rotation=True,
            # Without its key, data that stays could not be read again.
            removal_policy=settings.removal_policy,
        )
