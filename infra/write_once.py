"""The log is write-once, and the bucket sees to it.

The replicas share one role (a run's id is known only when it starts, and a training job's session
carries no tag to tell it by), so no policy of that role can keep one run from another's log. What the
bucket can do is refuse to replace: a put to the log must say `If-None-Match: *`, whoever makes it
("Enforce conditional writes on Amazon S3 buckets", S3 user guide). An entry that stands then stands,
even for a broken or hostile replica of another run; and none can be deleted, since no role may.

Not covered, by design: `progress/`, which is overwritten, and the payloads (`initial/*.safetensors`
and `diloco-data/`), which are large enough for multipart uploads and which manifests hold to their
checksum.
"""

from typing import Final

from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from infra.run_objects import any_run
from trainer.layout import RunLayout

_RUN: Final = RunLayout("RUN-ID-HERE")

# One pattern for each kind of entry of the log. A policy's `*` also matches slashes.
WRITE_ONCE: Final = tuple(
    any_run(key)
    for key in (
        _RUN.run_file,
        _RUN.abort,
        _RUN.initial,
        f"{_RUN.claims_prefix}/*",
        f"{_RUN.rounds_prefix}/*",
        f"{_RUN.log_prefix}/events/*",
        f"{_RUN.evaluations_prefix}/*",
        f"{_RUN.log_prefix}/results/*",
    )
)


def refuse_to_replace(bucket: s3.Bucket) -> None:
    """Add the statement to the bucket's policy."""
    bucket.add_to_resource_policy(
        iam.PolicyStatement(
            sid="LogIsWriteOnce",
            effect=iam.Effect.DENY,
            principals=[iam.AnyPrincipal()],
            actions=["s3:PutObject"],
            resources=[bucket.arn_for_objects(key) for key in WRITE_ONCE],
            conditions={
                "Null": {"s3:if-none-match": "true"},
                # The parts of a multipart upload carry no such header; its completion does.
                "Bool": {"s3:ObjectCreationOperation": "true"},
            },
        )
    )
