"""Secrets a trainer needs, such as the token of a gated model: read at start, never in a run's parameters.

The environment names a Secrets Manager secret by its ARN (layout.SECRET_ENV, from the deployment's
setting `secret_arn`); its text is a JSON object whose members become environment variables of this
process, {"HF_TOKEN": "..."}. Nobody who describes the training job, or reads run.json, sees them.
"""

import json
from collections.abc import Mapping, MutableMapping

from trainer import layout
from trainer.failures import BadSecret
from trainer.rendezvous.errors import AccessDenied


def add_secrets(environ: MutableMapping[str, str]) -> None:
    """Put the secret's members into `environ`; what is there already stands.

    Raises AccessDenied, and BadSecret where the secret is missing or no JSON object of texts.
    """
    arn = environ.get(layout.SECRET_ENV)
    if arn:
        for name, value in _members(arn).items():
            environ.setdefault(name, value)


def _members(arn: str) -> Mapping[str, str]:
    import boto3  # here, since most runs have no secret
    from botocore.exceptions import ClientError

    try:
        answer = boto3.client("secretsmanager").get_secret_value(SecretId=arn)
    except ClientError as error:
        if error.response["Error"]["Code"] == "AccessDeniedException":
            raise AccessDenied(f"secret {arn}: {error}") from error
        raise BadSecret(f"secret {arn}: {error}") from error
    try:
        members = json.loads(answer.get("SecretString", ""))
    except ValueError as error:
        raise BadSecret(f'secret {arn}: its text must be a JSON object, {{"NAME": "value"}}') from error
    if not isinstance(members, dict) or not all(isinstance(value, str) for value in members.values()):
        raise BadSecret(f'secret {arn}: its text must be a JSON object of texts, {{"NAME": "value"}}')
    return members
