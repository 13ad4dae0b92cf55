"""A state machine's definition out of a synthesised template, as the JSON that AWS will see.

In a template it is a string joined from literals and references to other resources. Checkers and
tests want the whole; the references become placeholders of the right shape.
"""

import json
from typing import Any

STATE_MACHINE = "AWS::StepFunctions::StateMachine"

# Ids that belong to nobody, in the shapes that AWS and the validators expect.
_PSEUDO = {
    "AWS::Partition": "aws",
    "AWS::Region": "xx-nowhere-1",
    "AWS::AccountId": "0" * 12,
    "AWS::URLSuffix": "amazonaws.com",
}


def definitions(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every state machine's definition, by logical id."""
    return {
        logical_id: json.loads(resolve(resource["Properties"]["DefinitionString"]))
        for logical_id, resource in template["Resources"].items()
        if resource["Type"] == STATE_MACHINE
    }


def resolve(value: Any) -> str:
    """A template's string with its functions carried out on placeholders."""
    match value:
        case str():
            return value
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(map(resolve, parts))
        case {"Fn::Select": [index, {"Fn::Split": [separator, whole]}]}:
            return resolve(whole).split(str(separator))[int(index)]
        case {"Fn::Sub": str(text)}:
            for name, placeholder in _PSEUDO.items():
                text = text.replace(f"${{{name}}}", placeholder)
            return text
        case {"Ref": str(name)}:
            return _PSEUDO.get(name, f"ref-{name}".lower())
        case {"Fn::GetAtt": [_, "Digest"]}:
            return f"sha256:{'0' * 64}"
        case {"Fn::GetAtt": [_, "GroupId"]}:
            return f"sg-{'0' * 17}"
        case {"Fn::GetAtt": [name, "Arn"]}:
            return f"arn:aws:iam::{'0' * 12}:role/{name}"
        case {"Fn::ImportValue": str(name)}:
            if "Arn" in name:
                return f"arn:aws:ecr:xx-nowhere-1:{'0' * 12}:repository/placeholder"
            return "placeholder-bucket-or-repository"
    raise TypeError(f"no placeholder for {json.dumps(value)}")
