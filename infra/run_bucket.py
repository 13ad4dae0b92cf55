"""The bucket all runs share: the only thing the replicas of a run have in common."""

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from infra.findings import acknowledge
from infra.write_once import refuse_to_replace
from trainer import layout


class RunBucket(Construct):
    """Logs, payloads, checkpoints and results of every run; grants nothing itself.

    No versioning: entries of the log are never replaced (write_once.py), and of payloads
    that expire a version would keep what the expiry is there to delete.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        payload_days: int,
        removal_policy: RemovalPolicy,
        key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, id_)
        # The id is part of the bucket's logical id: renaming it replaces the bucket.
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
            encryption_key=key,
            bucket_key_enabled=True if key else None,  # one request to KMS serves many objects
            enforce_ssl=True,
            minimum_tls_version=1.2,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            removal_policy=removal_policy,
        )
        self.bucket.add_lifecycle_rule(
            id="ExpirePayloads",
            prefix=f"{layout.DATA_PREFIX}/",
            expiration=Duration.days(payload_days),
        )
        # A replica killed in mid-upload leaves parts that cost money and show in no listing.
        self.bucket.add_lifecycle_rule(
            id="AbortIncompleteUploads",
            abort_incomplete_multipart_upload_after=Duration.days(3),
        )
        refuse_to_replace(self.bucket)
        acknowledge(
            self.bucket,
            "S1",
            "Access logs would double the requests of every exchange; CloudTrail data events record them",
        )
