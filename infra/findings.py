"""Findings of cdk-nag that are meant to be so, each with its reason.

cdk-nag names every wildcard of a policy as a finding of its own, by the text it has in the
template. The names are worked out here from the statements themselves, so that a reason stands
beside its statement and covers that statement's wildcards and no others.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from aws_cdk import Acknowledgment, Reference, Stack, Tokenization, Validations
from aws_cdk import aws_iam as iam
from constructs import IConstruct


def acknowledge(scope: IConstruct, rule: str, reason: str) -> None:
    """Accept one finding of the AwsSolutions rules on `scope` and what is below it."""
    Validations.of(scope).acknowledge(Acknowledgment(id=f"AwsSolutions-{rule}", reason=reason))


# Statements, each with the reason why its wildcards can't be narrower, where it has any.
Statements = Iterable[tuple[iam.PolicyStatement, str | None]]


def add_statements(role: iam.Role, statements: Statements) -> None:
    """Make `statements` the role's policy and acknowledge their wildcards."""
    for statement, reason in statements:
        role.add_to_policy(statement)
        if reason is not None:
            acknowledge_wildcards(role, [*statement.actions, *statement.resources], reason)


def acknowledge_wildcards(role: IConstruct, values: Iterable[str], reason: str) -> None:
    """Accept those of `values`, actions or resources of the role's policy, that hold a wildcard."""
    for value in values:
        shown = _shown_by_nag(Stack.of(role), value)
        if "*" in shown:
            kind = "Action" if _is_action(shown) else "Resource"
            acknowledge(role, f"IAM5[{kind}::{shown}]", reason)


def _is_action(text: str) -> bool:
    return text.count(":") == 1 and "/" not in text


def _shown_by_nag(stack: Stack, value: str) -> str:
    """`value` as cdk-nag writes it: references as <LogicalId.Arn>, those to other stacks by export."""
    imports = {}
    for token in Tokenization.reverse_string(value).tokens:
        if not Reference.is_reference(token):
            continue
        owner = Stack.of(cast("Reference", token).target)
        if owner is not stack:
            export = owner.resolve(owner.export_value(token))["Fn::ImportValue"]
            imports[str(stack.resolve(token))] = export
    return _flat(stack.resolve(value), imports)


def _flat(value: Any, imports: Mapping[str, str]) -> str:
    match value:
        case str():
            return value
        case {"Fn::Join": [_, parts]}:
            return "".join(_flat(part, imports) for part in parts)
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return imports.get(str(value), f"<{name}.{attribute}>")
    raise TypeError(f"how does cdk-nag write {value}?")
