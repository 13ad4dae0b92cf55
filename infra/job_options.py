"""What a deployment decides for every training job: network, keys, a secret (infra/settings.py)."""

from dataclasses import dataclass
from typing import Any

from trainer import layout


@dataclass(frozen=True)
class JobOptions:
    """Parts of CreateTrainingJob's request that are the same for all runs. None, or empty, leaves one out."""

    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()
    key_arn: str | None = None
    secret_arn: str | None = None
    application: str = "diloco"  # the cost-allocation tag of every resource of a deployment, jobs included

    def vpc_config(self) -> dict[str, Any]:
        if not self.subnet_ids:
            return {}
        return {
            "VpcConfig": {
                "Subnets": list(self.subnet_ids),
                "SecurityGroupIds": list(self.security_group_ids),
            }
        }

    def output_key(self) -> dict[str, str]:
        return {"KmsKeyId": self.key_arn} if self.key_arn else {}

    def environment(self) -> dict[str, str]:
        """The ARN and never the secret: DescribeTrainingJob shows a job's environment to whoever may ask."""
        return {layout.SECRET_ENV: self.secret_arn} if self.secret_arn else {}
