"""What a deployment may choose, read once from the CDK context and checked.

`cdk deploy -c sandbox=true` on the command line, or the same names in `cdk.json`. Whoever
deploys sets these; whoever starts a run sets run parameters (trainer/run_spec.py) instead.
"""

from collections.abc import Mapping
from typing import Any, Final, Self

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs
from constructs import Node
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trainer.run_spec import MAX_RUNTIME_S

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
        description="Delete the bucket (which must be empty by then) and the images with the storage "
        "stack. Otherwise they stay: they are what runs have produced.",
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
                f"{'.'.join(map(str, detail['loc']))}: {detail['msg']} (got {detail['input']!r})"
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
