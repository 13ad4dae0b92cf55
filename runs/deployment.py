"""Where runs can be started: the outputs of a deployed runs stack."""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import boto3
from botocore.exceptions import BotoCoreError, ClientError

DEFAULT_PREFIX: Final = "diloco"
JOB_LOG_GROUP: Final = "/aws/sagemaker/TrainingJobs"


class NotDeployed(Exception):
    """There is no runs stack of this prefix here."""


class CannotTell(Exception):
    """AWS did not answer, so whether a run goes well is unknown. The run itself goes on."""


@dataclass(frozen=True)
class Deployment:
    """One deployment of the stacks, and the clients to talk to it."""

    session: Any
    state_machine_arn: str
    bucket: str

    @classmethod
    def find(cls, prefix: str = DEFAULT_PREFIX) -> "Deployment":
        """Look the stack `<prefix>-runs` up. Raises NotDeployed, CannotTell."""
        session = boto3.Session()
        name = f"{prefix}-runs"
        try:
            stack = session.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
        except ClientError as error:
            if "does not exist" in str(error):
                where = session.region_name or "no region"
                raise NotDeployed(f"no stack {name} in {where}: deploy it with `cdk deploy --all`") from error
            raise CannotTell(f"looking up stack {name}: {error}") from error
        except BotoCoreError as error:
            raise CannotTell(f"looking up stack {name}: {error}") from error
        outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
        return cls(session, outputs["StateMachineArn"], outputs["RunBucketName"])

    def client(self, service: str) -> Any:
        return self.session.client(service)

    def links(self, execution_arn: str, run_id: str) -> dict[str, str]:
        """Pages of the AWS console for a run; none where the endpoint isn't AWS."""
        endpoint = self.client("stepfunctions").meta.endpoint_url
        if not endpoint.endswith("amazonaws.com"):
            return {"endpoint": endpoint}
        region = execution_arn.split(":")[3]
        console = f"https://{region}.console.aws.amazon.com"
        log_group = quote(quote(JOB_LOG_GROUP, safe=""), safe="").replace("%", "$")
        return {
            "execution": f"{console}/states/home?region={region}#/v2/executions/details/{execution_arn}",
            "training jobs": f"{console}/sagemaker/home?region={region}#/jobs",
            "logs": f"{console}/cloudwatch/home?region={region}#logsV2:log-groups/log-group/{log_group}",
            "bucket": f"https://s3.console.aws.amazon.com/s3/buckets/{self.bucket}?prefix=diloco-rdv/{run_id}/",
        }
