"""What settings add to the stacks: a key, a network, a secret, other data, a boundary."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from infra.definition import definitions
from infra.network import SERVICES
from tests.infra.conftest import all_states
from tests.support.templates import Template, properties

Synth = Callable[..., dict[str, Template]]

IMAGE = "example/image:1"
SECRET = f"arn:aws:secretsmanager:xx-nowhere-1:{'0' * 12}:secret:hub-AbCdEf"


def _statement(template: Template, role: str, sid: str) -> dict[str, Any]:
    (found,) = [
        statement
        for policy in properties(template, "AWS::IAM::Policy").values()
        if any(role in str(ref) for ref in policy["Roles"])
        for statement in policy["PolicyDocument"]["Statement"]
        if statement.get("Sid") == sid
    ]
    return dict(found)


@pytest.fixture(scope="module")
def keyed(synth: Synth) -> dict[str, Template]:
    return synth(image_uri=IMAGE, customer_key="true", secret_arn=SECRET, isolated_network="true")


def test_one_key_of_the_account_encrypts_bucket_images_and_volumes(
    keyed: dict[str, Template], job_request: Any
) -> None:
    (key,) = [n for n, r in keyed["storage"]["Resources"].items() if r["Type"] == "AWS::KMS::Key"]
    assert keyed["storage"]["Resources"][key]["Properties"]["EnableKeyRotation"] is True
    assert keyed["storage"]["Resources"][key]["DeletionPolicy"] == "Retain"
    arn = {"Fn::GetAtt": [key, "Arn"]}
    (bucket,) = properties(keyed["storage"], "AWS::S3::Bucket").values()
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule == {
        "BucketKeyEnabled": True,
        "ServerSideEncryptionByDefault": {"KMSMasterKeyID": arn, "SSEAlgorithm": "aws:kms"},
    }
    (repository,) = properties(keyed["storage"], "AWS::ECR::Repository").values()
    assert repository["EncryptionConfiguration"] == {"EncryptionType": "KMS", "KmsKey": arn}
    (definition,) = definitions(keyed["runs"]).values()
    arguments = job_request(all_states(definition))
    assert "VolumeKmsKeyId" in arguments["ResourceConfig"]
    assert arguments["OutputDataConfig"].keys() == {"S3OutputPath", "CompressionType", "KmsKeyId"}


def test_the_roles_may_use_the_key_and_lend_it_to_volumes_alone(keyed: dict[str, Template]) -> None:
    use, lend = (_statement(keyed["runs"], "Replica", sid) for sid in ("UseKey", "LendKeyToVolumes"))
    assert sorted(use["Action"]) == ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey"]
    assert [lend["Action"], lend["Condition"]] == [
        "kms:CreateGrant",
        {"Bool": {"kms:GrantIsForAWSResource": "true"}},
    ]
    theirs = _statement(keyed["runs"], "RunsRole", "UseKey")
    assert sorted(theirs["Action"]) == ["kms:Decrypt", "kms:GenerateDataKey"]
    for statement in (use, lend, theirs):
        assert list(statement["Resource"]) == ["Fn::ImportValue"]


def test_a_secret_is_named_by_its_arn_and_read_by_replicas_alone(keyed: dict[str, Template]) -> None:
    read = _statement(keyed["runs"], "Replica", "ReadSecret")
    assert [read["Action"], read["Resource"]] == ["secretsmanager:GetSecretValue", SECRET]
    assert json.dumps(keyed["runs"]).count("secretsmanager:GetSecretValue") == 1


def test_the_isolated_network_has_no_way_to_the_internet(
    keyed: dict[str, Template], job_request: Any
) -> None:
    types = {resource["Type"] for resource in keyed["runs"]["Resources"].values()}
    assert not types & {"AWS::EC2::InternetGateway", "AWS::EC2::NatGateway", "AWS::EC2::Route"}
    endpoints = properties(keyed["runs"], "AWS::EC2::VPCEndpoint").values()
    kinds = sorted(endpoint["VpcEndpointType"] for endpoint in endpoints)
    assert kinds == ["Gateway"] + ["Interface"] * (len(SERVICES) + 1)
    (rule,) = properties(keyed["runs"], "AWS::EC2::SecurityGroupIngress").values()
    assert [rule["FromPort"], rule["ToPort"], list(rule["SourceSecurityGroupId"])] == [
        443,
        443,
        ["Fn::GetAtt"],
    ]
    assert not [
        g
        for g in properties(keyed["runs"], "AWS::EC2::SecurityGroup").values()
        if "SecurityGroupIngress" in g
    ]
    (definition,) = definitions(keyed["runs"]).values()
    vpc = job_request(all_states(definition))["VpcConfig"]
    assert [len(vpc["Subnets"]), len(vpc["SecurityGroupIds"])] == [2, 1]
    assert "ec2:CreateNetworkInterface" in _statement(keyed["runs"], "Replica", "AttachToNetwork")["Action"]


def test_without_settings_there_is_none_of_it(templates: dict[str, Template]) -> None:
    text = json.dumps(templates)
    for word in ("AWS::KMS", "AWS::EC2", "ec2:", "kms:", "secretsmanager", "PermissionsBoundary"):
        assert word not in text


def test_other_data_is_readable_below_its_prefix_and_no_more(synth: Synth) -> None:
    runs = synth(image_uri=IMAGE, read_uris="s3://data-sets/text/,s3://models/")["runs"]
    found = [
        statement
        for policy in properties(runs, "AWS::IAM::Policy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if "data-sets" in json.dumps(statement) or "models" in json.dumps(statement)
    ]
    partition = {"Ref": "AWS::Partition"}

    def arn(rest: str) -> dict[str, Any]:
        return {"Fn::Join": ["", ["arn:", partition, f":s3:::{rest}"]]}

    assert found == [
        {"Action": "s3:GetObject", "Effect": "Allow",
         "Resource": [arn("data-sets/text/*"), arn("models/*")]},
        {"Action": "s3:ListBucket", "Effect": "Allow", "Resource": arn("data-sets"),
         "Condition": {"StringLike": {"s3:prefix": ["text/*"]}}},
        {"Action": "s3:ListBucket", "Effect": "Allow", "Resource": arn("models"),
         "Condition": {"StringLike": {"s3:prefix": ["*"]}}},
    ]  # fmt: skip


def test_a_boundary_bounds_every_role(synth: Synth) -> None:
    templates = synth(permissions_boundary="team/boundary")
    roles = [
        role for template in templates.values() for role in properties(template, "AWS::IAM::Role").values()
    ]
    assert len(roles) >= 4
    for role in roles:
        assert ":policy/team/boundary" in json.dumps(role["PermissionsBoundary"])
