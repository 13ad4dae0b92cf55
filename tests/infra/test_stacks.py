"""What is deployed: data, logs, images, and what may pass from one stack to the other."""

import json
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.support.templates import Template, of_type, statements
from trainer.layout import RunLayout

Templates = dict[str, Template]
Synth = Callable[..., Templates]

ROOT = Path(__file__).parent.parent.parent


def test_the_bucket_takes_tls_only_and_nobody_from_outside(templates: Templates) -> None:
    (bucket,) = of_type(templates["storage"], "AWS::S3::Bucket")
    assert bucket["Properties"]["PublicAccessBlockConfiguration"] == {
        "BlockPublicAcls": True,
        "BlockPublicPolicy": True,
        "IgnorePublicAcls": True,
        "RestrictPublicBuckets": True,
    }
    assert "VersioningConfiguration" not in bucket["Properties"]
    (policy,) = of_type(templates["storage"], "AWS::S3::BucketPolicy")
    conditions = [s["Condition"] for s in policy["Properties"]["PolicyDocument"]["Statement"]]
    assert {"Bool": {"aws:SecureTransport": "false"}} in conditions
    assert all(s["Effect"] == "Deny" for s in policy["Properties"]["PolicyDocument"]["Statement"])


def test_payloads_expire_after_the_longest_job_and_incomplete_uploads_soon(templates: Templates) -> None:
    (bucket,) = of_type(templates["storage"], "AWS::S3::Bucket")
    assert bucket["Properties"]["LifecycleConfiguration"]["Rules"] == [
        {"Id": "ExpirePayloads", "Prefix": "diloco-data/", "ExpirationInDays": 35, "Status": "Enabled"},
        {
            "Id": "AbortIncompleteUploads",
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3},
            "Status": "Enabled",
        },
    ]


def test_what_holds_results_stays_unless_the_deployment_is_a_sandbox(
    templates: Templates, synth: Synth
) -> None:
    kept = [r["DeletionPolicy"] for r in _stateful(templates["storage"])]
    assert kept == ["Retain", "Retain"]
    sandbox = _stateful(synth(sandbox="true", image_uri="example/image:1")["storage"])
    assert [r["DeletionPolicy"] for r in sandbox] == ["Delete", "Delete"]


def _stateful(template: Template) -> list[dict[str, Any]]:
    return of_type(template, "AWS::S3::Bucket") + of_type(template, "AWS::ECR::Repository")


def test_images_are_scanned_and_their_tags_never_move(templates: Templates) -> None:
    (repository,) = of_type(templates["storage"], "AWS::ECR::Repository")
    assert repository["Properties"]["ImageTagMutability"] == "IMMUTABLE"
    assert repository["Properties"]["ImageScanningConfiguration"] == {"ScanOnPush": True}


def test_no_rule_takes_an_image_away_that_a_run_may_have_begun_with(templates: Templates) -> None:
    (repository,) = of_type(templates["storage"], "AWS::ECR::Repository")
    rules = json.loads(repository["Properties"]["LifecyclePolicy"]["LifecyclePolicyText"])["rules"]
    assert [rule["selection"] for rule in rules] == [
        {"tagStatus": "untagged", "countType": "sinceImagePushed", "countNumber": 30, "countUnit": "days"}
    ]


def test_jobs_name_their_image_by_the_digest_of_the_build(templates: Templates) -> None:
    resources = templates["runs"]["Resources"]
    (build,) = [name for name, r in resources.items() if r["Type"] == "Custom::TrainerImageBuild"]
    (machine,) = of_type(templates["runs"], "AWS::StepFunctions::StateMachine")
    parts = machine["Properties"]["DefinitionString"]["Fn::Join"][1]
    digest = parts.index({"Fn::GetAtt": [build, "Digest"]})
    assert parts[digest - 1] == "@"


def test_executions_are_logged_and_traced(templates: Templates) -> None:
    (machine,) = of_type(templates["runs"], "AWS::StepFunctions::StateMachine")
    logging = machine["Properties"]["LoggingConfiguration"]
    assert [logging["Level"], logging["IncludeExecutionData"]] == ["ALL", True]
    assert machine["Properties"]["TracingConfiguration"] == {"Enabled": True}
    (destination,) = logging["Destinations"]
    (group_id, _) = destination["CloudWatchLogsLogGroup"]["LogGroupArn"]["Fn::GetAtt"]
    group = templates["runs"]["Resources"][group_id]["Properties"]
    # By any other name each state machine would add to a policy of the account that has an end.
    assert group["LogGroupName"] == "/aws/vendedlogs/states/diloco-runs"


def _crossing(templates: Templates) -> list[str]:
    exports = sorted(
        output["Export"]["Name"]
        for output in templates["storage"].get("Outputs", {}).values()
        if "Export" in output
    )
    imports = set(re.findall(r'"Fn::ImportValue": "([^"]+)"', json.dumps(templates["runs"])))
    assert sorted(imports) == exports
    return [*exports, json.dumps(templates["storage"], sort_keys=True)]


def test_new_trainer_sources_change_nothing_that_crosses_stacks(
    templates: Templates, synth: Synth, tmp_path: Path
) -> None:
    """CloudFormation refuses to change an exported value while another stack imports it."""
    for folder in ("trainer", "container"):
        (tmp_path / folder).mkdir()
        for path in (ROOT / folder).glob("*.*"):
            (tmp_path / folder / path.name).write_bytes(path.read_bytes())
    (tmp_path / "trainer" / "new.py").write_text("# a change\n")
    (tmp_path / "unrelated.txt").write_text("no part of the image")
    changed = synth(root=tmp_path)
    assert _crossing(changed) == _crossing(templates)
    assert _image(changed) != _image(templates)
    (tmp_path / "unrelated.txt").write_text("still no part of it")
    assert _image(synth(root=tmp_path)) == _image(changed)


def _image(templates: Templates) -> str:
    (build,) = of_type(templates["runs"], "Custom::TrainerImageBuild")
    return json.dumps(build["Properties"]["ImageUri"])


def test_another_base_is_another_image(templates: Templates, synth: Synth) -> None:
    assert _image(synth(base_image="public.ecr.aws/docker/library/python:3.12-slim")) != _image(templates)


def test_an_image_of_ones_own_replaces_the_whole_build(synth: Synth) -> None:
    account, region = "1" * 12, "xx-some-2"
    uri = f"{account}.dkr.ecr.{region}.amazonaws.com/team/trainer:v1"
    runs = synth(image_uri=uri)["runs"]
    assert uri in json.dumps(runs)
    assert not [r for r in runs["Resources"].values() if "CodeBuild" in r["Type"] or "Lambda" in r["Type"]]
    (pull,) = [s for s in statements(runs, "a replica") if s["Sid"] == "PullTrainerImage"]
    assert pull["Resource"] == [f"arn:<AWS::Partition>:ecr:{region}:{account}:repository/team/trainer"]


def test_a_failed_build_leaves_the_state_machine_as_it_was(templates: Templates) -> None:
    (machine,) = of_type(templates["runs"], "AWS::StepFunctions::StateMachine")
    resources = templates["runs"]["Resources"]
    assert "Custom::TrainerImageBuild" in [resources[name]["Type"] for name in machine["DependsOn"]]


def test_the_runs_stack_says_what_a_client_needs(templates: Templates) -> None:
    outputs = {name: o for name, o in templates["runs"]["Outputs"].items() if "Export" not in o}
    assert outputs.keys() == {"StateMachineArn", "RunBucketName"}


def test_nothing_has_a_physical_name(templates: Templates) -> None:
    naming = ("BucketName", "RepositoryName", "RoleName", "StateMachineName", "FunctionName", "LogGroupName")
    for template in templates.values():
        for resource in template["Resources"].values():
            named = resource.get("Properties", {})
            own = [name for name in naming if name in named and not _derived(named[name])]
            assert not own, resource


def _derived(name: Any) -> bool:
    """The one name that must begin as AWS says, and ends with the stack's."""
    return str(name).startswith("/aws/vendedlogs/")


@pytest.mark.parametrize(
    "pattern", [r"\b[0-9]{12}\b", r"\b(us|eu|ap|sa|ca|me|af)-[a-z]+-[0-9]\b", r"arn:aws:(?!states:::)"]
)
def test_no_account_region_or_arn_is_written_in_the_code(pattern: str) -> None:
    sources = [
        ROOT / "app.py",
        ROOT / "cdk.json",
        *(ROOT / "infra").glob("*.py"),
        *(ROOT / "container").glob("*"),
    ]
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sources
        if path.is_file()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
        and path.name
        not in ("definition.py", "policy_lint.py")  # placeholders of a nowhere account, for the checkers
    ]
    assert found == []


def test_the_bucket_takes_log_entries_by_create_only_puts_alone(templates: Templates) -> None:
    (policy,) = of_type(templates["storage"], "AWS::S3::BucketPolicy")
    (statement,) = [
        s for s in policy["Properties"]["PolicyDocument"]["Statement"] if s.get("Sid") == "LogIsWriteOnce"
    ]
    resources = statement.pop("Resource")
    assert statement == {
        "Sid": "LogIsWriteOnce",
        "Effect": "Deny",
        "Principal": {"AWS": "*"},
        "Action": "s3:PutObject",
        "Condition": {
            "Null": {"s3:if-none-match": "true"},
            "Bool": {"s3:ObjectCreationOperation": "true"},
        },
    }
    patterns = ["/".join(resource["Fn::Join"][1][1:])[1:] for resource in resources]
    keys = RunLayout("a-run")
    once = [keys.run_file, keys.abort, keys.initial, keys.claim(3, 2), keys.contribution(7, 3),
            keys.roster(7), keys.event(7, 3), keys.result(3)]  # fmt: skip
    often = [keys.progress(3), keys.initial_payload(3, 2), keys.payload(7, 3, 2), keys.metrics(3),
             f"{keys.model_prefix}/model.safetensors"]  # fmt: skip
    for key in once:
        assert any(fnmatchcase(key, pattern) for pattern in patterns), key
    for key in often:
        assert not any(fnmatchcase(key, pattern) for pattern in patterns), key
