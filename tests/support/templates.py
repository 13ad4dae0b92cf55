"""What is in a synthesised CloudFormation template, in words that a test can compare."""

from typing import Any

from infra.definition import resolve

Template = dict[str, Any]


def of_type(template: Template, type_: str) -> list[dict[str, Any]]:
    """Its resources of one CloudFormation type, such as AWS::S3::Bucket."""
    return [resource for resource in template["Resources"].values() if resource["Type"] == type_]


def properties(template: Template, type_: str) -> dict[str, dict[str, Any]]:
    """The properties of its resources of one type, by logical id."""
    return {n: r["Properties"] for n, r in template["Resources"].items() if r["Type"] == type_}


def statements(template: Template, role: str) -> list[dict[str, Any]]:
    """The statements of all policies of the role whose description says `role`, in plain words."""
    (role_id,) = [
        logical_id
        for logical_id, resource in template["Resources"].items()
        if resource["Type"] == "AWS::IAM::Role" and role in resource["Properties"].get("Description", "")
    ]
    policies = [
        policy["Properties"]
        for policy in of_type(template, "AWS::IAM::Policy")
        if policy["Properties"]["Roles"] == [{"Ref": role_id}]
    ]
    found = [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]
    return [
        {key: _plain(value) if key in ("Resource", "Action") else value for key, value in statement.items()}
        for statement in found
    ]


def _plain(value: Any) -> list[str]:
    """Sorted, with the one bucket and the one repository by name."""
    values = value if isinstance(value, list) else [value]
    return sorted(arn(member) for member in values)


def arn(value: Any) -> str:
    """An ARN as text, with intrinsic functions as the names of what they stand for."""
    match value:
        case {"Fn::ImportValue": name} if "RunBucket" in name:
            return "BUCKET"
        case {"Fn::ImportValue": name} if "TrainerRepository" in name:
            return "REPOSITORY"
        case {"Fn::GetAtt": [name, "Arn"]} if name.startswith("ReplicaRole"):
            return "REPLICA_ROLE"
        case {"Fn::Join": ["", parts]}:
            return "".join(arn(part) for part in parts)
        case {"Ref": name}:
            return f"<{name}>"
    return resolve(value)
