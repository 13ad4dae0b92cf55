"""What a deployment may choose, read once from the CDK context and checked.

`cdk deploy -c sandbox=true` on the command line, or the same names in `cdk.json`. Whoever
deploys sets these; whoever starts a run sets run parameters (trainer/run_spec.py) instead.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Self

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs
from constructs import Node
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from trainer.job_parameters import MAX_RUNTIME_S

# Payloads must outlive every job that could still ask for them.
LONGEST_JOB_DAYS: Final = MAX_RUNTIME_S // 86_400
# CloudWatch keeps logs for certain numbers of days only (PutRetentionPolicy); a choice of them.
LOG_RETENTION: Final = {
    7: logs.RetentionDays.ONE_WEEK,
    30: logs.RetentionDays.ONE_MONTH,
    90: logs.RetentionDays.THREE_MONTHS,
    180: logs.RetentionDays.SIX_MONTHS,
    365: logs.RetentionDays.ONE_YEAR,
    731: logs.RetentionDays.TWO_YEARS,
}

# A bucket and a prefix, which must not be empty: a whole bucket is named by s3://bucket/ on purpose.
READ_URI: Final = r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/([^*?\s,]*)"

SECRET_ARN: Final = r"^arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]+$"  # noqa: S105


class InvalidSetting(ValueError):
    """A context value can't be used. The message names the key."""


class Settings(BaseModel):
    """The settings of one deployment. Names are context keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefix: str = Field(
        "diloco", pattern=r"^[a-z][a-z0-9-]{0,39}$",
        description="Beginning of the stacks' names: two prefixes live side by side in one account.",
    )  # fmt: skip
    sandbox: bool = Field(
        False,
        description="Delete the bucket with all it holds, and the images, with the storage stack."
        "  Otherwise they stay: they are what runs have produced.",
    )  # fmt: skip
    image_uri: str | None = Field(
        None, pattern=r"^[a-z0-9][a-zA-Z0-9._/-]*(:[0-9]+/[a-zA-Z0-9._/-]+)?([:@][a-zA-Z0-9._:-]+)?$",
        max_length=255,
        description="A trainer image that exists already; nothing is built then.",
    )  # fmt: skip
    base_image: str = Field(
        "public.ecr.aws/docker/library/python:3.11.13-slim-bookworm", pattern=r"^[a-zA-Z0-9._/:@-]+$",
        max_length=255,
        description="What the trainer image starts from. A base that has torch already keeps it, such as "
        "an AWS Deep Learning Container of the public gallery, public.ecr.aws/deep-learning-containers.",
    )  # fmt: skip
    log_retention_days: int = Field(
        90,
        description="Days to keep the logs of the state machine and of the image builds: 7, 30, 90, "
        "180, 365 or 731.",
    )
    payload_days: int = Field(
        35, gt=LONGEST_JOB_DAYS, le=3650,
        description="Days to keep what replicas exchange. A replica that catches up reads back what its "
        "peers have put since its last checkpoint, so this must exceed the 28 days a job may take; a run "
        "that relaunches stretch beyond this needs more.",
    )  # fmt: skip

    subnet_ids: tuple[str, ...] = Field(
        (), max_length=16,
        description="Subnets of yours, separated by commas, in which training jobs run. They need a way to "
        "S3, ECR, CloudWatch and STS. Goes with security_group_ids.",
    )  # fmt: skip
    security_group_ids: tuple[str, ...] = Field((), max_length=5, description="Their security groups.")
    isolated_network: bool = Field(
        False,
        description="Make a network of our own for the training jobs, without internet. Its endpoints cost "
        "some ten cents an hour. The trainer can then fetch nothing from elsewhere, such as a model hub.",
    )  # fmt: skip
    customer_key: bool = Field(
        False,
        description="Encrypt the bucket, the images and the jobs' volumes with a KMS key of this account "
        "(a dollar a month and requests) instead of keys that AWS manages. Choose before the first "
        "deployment: turned on later, the repository would have to be replaced.",
    )  # fmt: skip
    secret_arn: str | None = Field(
        None, pattern=SECRET_ARN, max_length=512,
        description="Secrets Manager secret whose members become environment variables of the trainer, "
        "such as the token of a gated model (trainer/secret_environment.py).",
    )  # fmt: skip
    read_uris: tuple[str, ...] = Field(
        (), max_length=20,
        description="Other data replicas may read: s3://bucket/prefix, separated by commas.",
    )  # fmt: skip
    notification_email: str | None = Field(
        None, pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$", max_length=254,
        description="Who is told that a run has ended, a job has failed or an alarm is on. AWS asks there "
        "for a confirmation first.",
    )  # fmt: skip
    monthly_budget_usd: int = Field(
        0, ge=0, le=10_000_000,
        description="Dollars a month above which notification_email is told; 0 makes no budget.",
    )  # fmt: skip
    permissions_boundary: str | None = Field(
        None, pattern=r"^[A-Za-z0-9+=,.@_/-]{1,128}$",
        description="Name of a managed policy of the account that bounds every role made here.",
    )  # fmt: skip

    @classmethod
    def from_context(cls, node: Node) -> Self:
        """Read the settings of an app. Raises InvalidSetting naming every bad key."""
        return cls.from_mapping(node.get_all_context())

    @classmethod
    def from_mapping(cls, context: Mapping[str, Any]) -> Self:
        given = {key: value for key, value in context.items() if _is_ours(key)}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, detail['loc'])) or 'all'}: {detail['msg']} (got {detail['input']!r})"
                for detail in error.errors()
            ]
            raise InvalidSetting(
                f"CDK context: {'; '.join(problems)}. Known keys: {', '.join(cls.model_fields)}."
            ) from error

    @field_validator("log_retention_days")
    @classmethod
    def _is_offered(cls, days: int) -> int:
        if days not in LOG_RETENTION:
            raise ValueError(f"must be one of {', '.join(map(str, LOG_RETENTION))}")
        return days

    @field_validator("subnet_ids", "security_group_ids", "read_uris", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """The command line has texts only."""
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @field_validator("subnet_ids", "security_group_ids")
    @classmethod
    def _are_ids(cls, ids: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        kind = {"subnet_ids": "subnet", "security_group_ids": "sg"}[str(info.field_name)]
        if not all(re.fullmatch(rf"{kind}-[0-9a-f]{{8,17}}", one) for one in ids):
            raise ValueError(f"must be ids like {kind}-0123456789abcdef0, separated by commas")
        return ids

    @field_validator("read_uris")
    @classmethod
    def _are_uris(cls, uris: tuple[str, ...]) -> tuple[str, ...]:
        if not all(re.fullmatch(READ_URI, uri) for uri in uris):
            raise ValueError("must be s3://bucket/prefix, without wildcards, separated by commas")
        return uris

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if bool(self.subnet_ids) is not bool(self.security_group_ids):
            raise ValueError("subnet_ids and security_group_ids go together")
        if self.monthly_budget_usd and not self.notification_email:
            raise ValueError("monthly_budget_usd needs notification_email: nobody would be told")
        if self.isolated_network and self.subnet_ids:
            raise ValueError("isolated_network and subnet_ids exclude each other")
        return self

    @property
    def log_retention(self) -> logs.RetentionDays:
        return LOG_RETENTION[self.log_retention_days]

    @property
    def removal_policy(self) -> RemovalPolicy:
        """What becomes of data when its stack is deleted."""
        return RemovalPolicy.DESTROY if self.sandbox else RemovalPolicy.RETAIN


def _is_ours(key: str) -> bool:
    """CDK keeps its own entries in the context too: feature flags, look-ups, command line state."""
    return not (key.startswith(("@", "aws:", "cdk-")) or ":" in key or "-" in key)
