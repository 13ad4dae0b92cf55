"""Policies as IAM will read them, put before an IAM linter.

parliament knows every action, the resources it takes and the condition keys it has: a statement that
would silently allow nothing, such as an object action on a bucket's ARN, is a finding. A template holds
references where a policy has ARNs, so each becomes a placeholder of its resource's kind.

`python -m infra.policy_lint TEMPLATE...` prints the findings, and exits 1 if there are any. It runs in
an environment of its own (requirements-lint.txt), and so imports nothing of CDK.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from infra.definition import resolve

_HERE: Final = f"xx-nowhere-1:{'0' * 12}"
_SHAPES: Final = {
    "AWS::CodeBuild::Project": f"arn:aws:codebuild:{_HERE}:project/placeholder",
    "AWS::ECR::Repository": f"arn:aws:ecr:{_HERE}:repository/placeholder",
    "AWS::Events::Rule": f"arn:aws:events:{_HERE}:rule/placeholder",
    "AWS::IAM::Role": f"arn:aws:iam::{'0' * 12}:role/placeholder",
    "AWS::KMS::Key": f"arn:aws:kms:{_HERE}:key/placeholder",
    "AWS::Lambda::Function": f"arn:aws:lambda:{_HERE}:function:placeholder",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{_HERE}:log-group:placeholder:*",
    "AWS::S3::Bucket": "arn:aws:s3:::placeholder",
    "AWS::SNS::Topic": f"arn:aws:sns:{_HERE}:placeholder",
    "AWS::StepFunctions::StateMachine": f"arn:aws:states:{_HERE}:stateMachine:placeholder",
}
# An import names the resource it comes from, in the words of its logical id.
_IMPORTED: Final = {
    "RunBucket": "AWS::S3::Bucket",
    "TrainerRepository": "AWS::ECR::Repository",
    "Key": "AWS::KMS::Key",
}

# parliament 1.6 knows neither of S3's condition keys for conditional writes ("Actions, resources, and
# condition keys for Amazon S3", service authorization reference) ...
_NEWER_THAN_PARLIAMENT: Final = ("s3:if-none-match", "s3:ObjectCreationOperation", "s3:TlsVersion")
# ... and s3:List* on one bucket, which is CDK's grant of an asset, holds actions that know no buckets.
_CDK_GRANTS_AN_ASSET: Final = "s3:ListAllMyBuckets"


def policies(template: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every policy document of a template, by its resource's logical id."""
    kinds = {name: resource["Type"] for name, resource in template["Resources"].items()}
    for name, resource in template["Resources"].items():
        document = resource.get("Properties", {}).get("PolicyDocument")
        if document is not None:
            yield name, _resolved(document, kinds)


def findings(template: dict[str, Any]) -> list[str]:
    """What parliament says about the template's policies, without what it gets wrong."""
    from parliament import analyze_policy_string

    found = []
    for name, document in policies(template):
        for finding in analyze_policy_string(json.dumps(document)).findings:
            said = f"{finding.issue} {finding.detail}"
            known = any(key in said for key in (*_NEWER_THAN_PARLIAMENT, _CDK_GRANTS_AN_ASSET))
            if not known:
                found.append(f"parliament: {name}: {said}")
    return found


def _resolved(value: Any, kinds: dict[str, str]) -> Any:
    match value:
        case {"Fn::GetAtt": [name, "Arn"]}:
            return _SHAPES[kinds[name]]
        case {"Fn::ImportValue": str(name)}:
            return next(_SHAPES[kind] for word, kind in _IMPORTED.items() if word in name)
        case {"Ref": str(name)} if kinds.get(name) in _SHAPES:
            return _SHAPES[kinds[name]]
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(str(_resolved(part, kinds)) for part in parts)
        case {"Ref": _} | {"Fn::Sub": _} | {"Fn::Select": _}:
            return resolve(value)
        case dict():
            return {key: _resolved(member, kinds) for key, member in value.items()}
        case list():
            return [_resolved(member, kinds) for member in value]
        case int() | float() if not isinstance(value, bool):
            return str(value)  # CDK writes numbers, IAM and its linters read texts
    return value


if __name__ == "__main__":
    all_findings = [line for path in sys.argv[1:] for line in findings(json.loads(Path(path).read_text()))]
    print("\n".join(all_findings))
    sys.exit(1 if all_findings else 0)
