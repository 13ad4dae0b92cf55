"""Who may do what in the calls that ministack doesn't serve: IAM's questions, asked of ministack's evaluator.

- the caller's policies, for each action a call amounts to (CreateTrainingJob with tags is also AddTags);
- iam:PassRole, with iam:PassedToService, for the role a caller hands to a service;
- the trust policy of that role, with aws:SourceAccount and aws:SourceArn of the resource it is for
  (IAM User Guide, "The confused deputy problem"), before a service gets a session of it.

Every client an emulated service makes is a session of a role, so what that role may do in S3 or Logs is
evaluated where S3 and Logs evaluate it.
"""

import json
import secrets
import string
import time
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.loaders
import botocore.session
from botocore.config import Config
from ministack.core import iam_actions, iam_evaluator
from ministack.core.responses import get_account_id, get_region
from ministack.services import iam as iam_store
from ministack.services import sts

# A session of a service outlives any job on a laptop; SageMaker renews its jobs' credentials unseen.
SESSION_S = 7 * 24 * 3600

# Shared, since reading a service's model takes ten times as long as making a client of it.
_models = botocore.loaders.create_loader()

_KEY_ALPHABET = string.ascii_uppercase + string.digits


class AccessDenied(Exception):
    """A policy doesn't allow the call; the message names the action, the resource and the principal."""


class CannotAssumeRole(Exception):
    """The role is missing, or its trust policy doesn't let the service in for this resource."""


@dataclass(frozen=True)
class Caller:
    """Whoever signed a call, by access key; the account's root may do everything."""

    access_key_id: str

    def require(self, action: str, resource: str, context: dict[str, Any] | None = None) -> None:
        """Raises AccessDenied unless the caller's policies allow `action` on `resource`."""
        service = action.split(":", 1)[0]
        denied = iam_evaluator.enforce(
            self.access_key_id, action, service, get_region(), resource_arn=resource, service_context=context
        )
        if denied is None:
            return
        if isinstance(denied, iam_evaluator.AuthError):
            raise AccessDenied(denied.message)
        raise AccessDenied(
            iam_actions.identity_denial_message(
                action, denied.principal_arn, resource, denied.decision == "Deny"
            )
        )

    def require_pass_role(self, role_arn: str, service: str) -> None:
        """iam:PassRole as asked of whoever hands `role_arn` to `service`."""
        self.require("iam:PassRole", role_arn, {"iam:PassedToService": service})


@dataclass(frozen=True)
class Session:
    """Temporary credentials of a role, assumed by a service."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    role_arn: str
    endpoint_url: str

    @property
    def caller(self) -> Caller:
        return Caller(self.access_key_id)

    def client(self, service: str) -> Any:
        """A boto3 client of this account, acting as the role."""
        core = botocore.session.Session()
        core.register_component("data_loader", _models)
        session = boto3.session.Session(
            botocore_session=core,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            aws_session_token=self.session_token,
            region_name=get_region(),
        )
        # Retries answer faults of a network; there is none here, and a test would wait for them.
        config = Config(retries={"mode": "standard", "total_max_attempts": 1})
        make: Any = session.client  # its stubs want the service's name as a literal
        return make(service, endpoint_url=self.endpoint_url, config=config)

    def environment(self) -> dict[str, str]:
        """The credentials as a process started for the role finds them."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.session_token,
            "AWS_REGION": get_region(),
            "AWS_DEFAULT_REGION": get_region(),
            "AWS_ENDPOINT_URL": self.endpoint_url,
        }


def assume_service_role(
    role_arn: str, *, service: str, session_name: str, source_arn: str, endpoint_url: str
) -> Session:
    """What `service` gets when it assumes `role_arn` on behalf of the resource `source_arn`.

    Raises CannotAssumeRole. The evaluator lets any service principal in where the root asks, so the
    statements for other services are taken out before it is asked as the root.
    """
    account = get_account_id()
    role = iam_store._roles.get_scoped(account, None, role_arn.rsplit("/", 1)[-1])
    if role is None or role.get("Arn") != role_arn:
        raise CannotAssumeRole(f"no role {role_arn}")
    trust = _statements_for(service, role["AssumeRolePolicyDocument"])
    root = f"arn:aws:iam::{account}:root"
    context = iam_evaluator.EvalContext(
        principal_arn=root,
        principal_type="Service",
        principal_account=account,
        action="sts:AssumeRole",
        resource_arn=role_arn,
        region=get_region(),
        secure_transport=True,
        service_context={"aws:sourceaccount": account, "aws:sourcearn": source_arn},
    )
    if not iam_evaluator.evaluate_trust_policy(trust, root, context):
        raise CannotAssumeRole(f"the trust policy of {role_arn} doesn't let in {service} for {source_arn}")
    return _register_session(role, service, session_name, endpoint_url)


def _statements_for(service: str, document: str | dict[str, Any]) -> dict[str, Any]:
    parsed = json.loads(document) if isinstance(document, str) else document
    statements = parsed.get("Statement", [])
    if isinstance(statements, dict):
        statements = [statements]
    return {"Statement": [s for s in statements if service in _service_principals(s)]}


def _service_principals(statement: dict[str, Any]) -> list[str]:
    principal = statement.get("Principal")
    services = principal.get("Service", []) if isinstance(principal, dict) else []
    return [services] if isinstance(services, str) else list(services)


def _register_session(role: dict[str, Any], service: str, session_name: str, endpoint_url: str) -> Session:
    account = get_account_id()
    name = session_name[:64]  # the longest RoleSessionName (STS API reference)
    session = Session(
        access_key_id="ASIA" + "".join(secrets.choice(_KEY_ALPHABET) for _ in range(16)),
        secret_access_key=secrets.token_hex(20),
        session_token=secrets.token_hex(64),
        role_arn=role["Arn"],
        endpoint_url=endpoint_url,
    )
    sts.register_session(
        session.access_key_id,
        {
            "Arn": f"arn:aws:sts::{account}:assumed-role/{role['RoleName']}/{name}",
            "UserId": f"{role.get('RoleId', 'AROA')}:{name}",
            "SecretAccessKey": session.secret_access_key,
            "SessionToken": session.session_token,
            "Expiration": time.time() + SESSION_S,
            "AccountId": account,
            "PrincipalType": "AssumedRole",
            "SourceAccessKeyId": "",
            "SourcePrincipalArn": service,
            "SessionTags": [],
            "SessionPolicies": None,
        },
    )
    return session
