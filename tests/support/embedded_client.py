"""boto3 clients of an embedded AWS, for tests: the root's, or those of whoever holds credentials."""

from collections.abc import Mapping
from typing import Any

import boto3


def embedded_client(
    environment: Mapping[str, str], service: str, credentials: Mapping[str, str] | None = None
) -> Any:
    """A client of the server that `environment` names (Settings.client_environment).

    Without `credentials`, as STS returns them, it is the root's.
    """
    make: Any = boto3.client  # its stubs want the service's name as a literal
    keys = credentials or {
        "AccessKeyId": environment["AWS_ACCESS_KEY_ID"],
        "SecretAccessKey": environment["AWS_SECRET_ACCESS_KEY"],
    }
    return make(
        service,
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys.get("SessionToken"),
    )
