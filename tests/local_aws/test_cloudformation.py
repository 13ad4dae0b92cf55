"""What a deployment of this project needs of CloudFormation: without the CDK, the same resources.

The custom resource is the product's pattern: a Lambda function that only starts a build, and a build that
answers CloudFormation itself, failure included.
"""

import io
import json
import zipfile
from typing import Any

import pytest
from botocore.exceptions import ClientError

START_BUILD = """
import boto3, os
def handler(event, context):
    names = dict(RESPONSE_URL="ResponseURL", STACK_ID="StackId", REQUEST_ID="RequestId",
                 LOGICAL_ID="LogicalResourceId")
    variables = [dict(name=name, value=event[key], type="PLAINTEXT") for name, key in names.items()]
    if event["RequestType"] == "Create":
        boto3.client("codebuild").start_build(
            projectName=os.environ["PROJECT"], environmentVariablesOverride=variables)
"""

ANSWER = """
import json, os, urllib.request
built = os.path.exists("built")
answer = {"Status": "SUCCESS" if built else "FAILED", "Reason": "the image did not build",
          "PhysicalResourceId": "image", "StackId": os.environ["STACK_ID"],
          "RequestId": os.environ["REQUEST_ID"], "LogicalResourceId": os.environ["LOGICAL_ID"],
          "Data": {"Tag": os.environ["TAG"]}}
urllib.request.urlopen(urllib.request.Request(
    os.environ["RESPONSE_URL"], data=json.dumps(answer).encode(), method="PUT", headers={"Content-Type": ""}))
"""


def role(service: str, *actions: str) -> dict[str, Any]:
    trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    rights = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    document = {"Version": "2012-10-17", "Statement": [rights]}
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
            "Policies": [{"PolicyName": "rights", "PolicyDocument": document}],
        },
    }


def template(source: str, *, docker_fails: bool) -> dict[str, Any]:
    phases = {
        "build": {
            "commands": ["docker build -t $REPOSITORY:$TAG .", "docker push $REPOSITORY:$TAG", "touch built"],
            "finally": ["python3 answer.py"],
        }
    }
    variables = [
        {"Name": "REPOSITORY", "Value": {"Fn::GetAtt": ["Repository", "RepositoryUri"]}},
        {"Name": "TAG", "Value": "v1"},
        *([{"Name": "STAND_IN_DOCKER_FAILS", "Value": "1"}] if docker_fails else []),
    ]
    no_tls = {
        "Effect": "Deny",
        "Principal": {"AWS": "*"},
        "Action": "s3:*",
        "Resource": [{"Fn::GetAtt": ["Bucket", "Arn"]}, {"Fn::Sub": "${Bucket.Arn}/*"}],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    resources = {
        "Bucket": {"Type": "AWS::S3::Bucket"},
        "BucketPolicy": {
            "Type": "AWS::S3::BucketPolicy",
            "Properties": {
                "Bucket": {"Ref": "Bucket"},
                "PolicyDocument": {"Version": "2012-10-17", "Statement": [no_tls]},
            },
        },
        "Repository": {"Type": "AWS::ECR::Repository"},
        "BuildRole": role("codebuild.amazonaws.com", "ecr:*", "s3:GetObject"),
        "Project": {
            "Type": "AWS::CodeBuild::Project",
            "Properties": {
                "ServiceRole": {"Fn::GetAtt": ["BuildRole", "Arn"]},
                "Source": {
                    "Type": "S3",
                    "Location": source,
                    "BuildSpec": json.dumps({"version": "0.2", "phases": phases}),
                },
                "Artifacts": {"Type": "NO_ARTIFACTS"},
                "Environment": {
                    "Type": "LINUX_CONTAINER",
                    "Image": "aws/codebuild/standard:7.0",
                    "ComputeType": "BUILD_GENERAL1_SMALL",
                    "EnvironmentVariables": variables,
                },
            },
        },
        "StartRole": role("lambda.amazonaws.com", "codebuild:StartBuild"),
        "Start": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Runtime": "python3.12",
                "Handler": "index.handler",
                "Role": {"Fn::GetAtt": ["StartRole", "Arn"]},
                "Code": {"ZipFile": START_BUILD},
                "Environment": {"Variables": {"PROJECT": {"Ref": "Project"}}},
            },
        },
        "Image": {
            "Type": "AWS::CloudFormation::CustomResource",
            "Properties": {"ServiceToken": {"Fn::GetAtt": ["Start", "Arn"]}},
        },
    }
    outputs = {
        "Bucket": {"Value": {"Ref": "Bucket"}},
        "Repository": {"Value": {"Ref": "Repository"}},
        "Tag": {"Value": {"Fn::GetAtt": ["Image", "Tag"]}},
    }
    return {"Resources": resources, "Outputs": outputs}


@pytest.fixture(scope="module")
def source(account: Any) -> str:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("Dockerfile", "FROM scratch\n")
        opened.writestr("answer.py", ANSWER)
    account.client("s3").put_object(Bucket=account.bucket, Key="answering.zip", Body=archive.getvalue())
    return f"{account.bucket}/answering.zip"


def deploy(account: Any, body: dict[str, Any]) -> dict[str, Any]:
    """The stack once it is made or rolled back."""
    cloudformation, name = account.client("cloudformation"), account.unique("stack")
    cloudformation.create_stack(
        StackName=name, TemplateBody=json.dumps(body), Capabilities=["CAPABILITY_IAM"]
    )

    def ended() -> dict[str, Any] | None:
        stack: dict[str, Any] = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
        return None if stack["StackStatus"].endswith("_IN_PROGRESS") else stack

    stack: dict[str, Any] = account.wait_until(ended, f"stack {name} ends")
    return stack


def reasons(account: Any, stack: dict[str, Any]) -> str:
    events = account.client("cloudformation").describe_stack_events(StackName=stack["StackId"])["StackEvents"]
    return " ".join(event.get("ResourceStatusReason", "") for event in events)


def test_a_build_answers_its_custom_resource_and_leaves_an_image(account: Any, source: str) -> None:
    stack = deploy(account, template(source, docker_fails=False))
    assert stack["StackStatus"] == "CREATE_COMPLETE", reasons(account, stack)
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    assert outputs["Tag"] == "v1"
    (image,) = account.client("ecr").describe_images(repositoryName=outputs["Repository"])["imageDetails"]
    assert image["imageTags"] == ["v1"]


def test_a_failed_build_fails_the_stack_with_its_reason(account: Any, source: str) -> None:
    stack = deploy(account, template(source, docker_fails=True))
    assert stack["StackStatus"] == "ROLLBACK_COMPLETE"
    assert "the image did not build" in reasons(account, stack)


def test_a_bucket_for_tls_alone_takes_requests_of_its_users(account: Any, source: str) -> None:
    stack = deploy(account, template(source, docker_fails=False))
    bucket = next(o["OutputValue"] for o in stack["Outputs"] if o["OutputKey"] == "Bucket")
    writer = account.client("s3", account.assume(account.allow("s3:PutObject")))
    writer.put_object(Bucket=bucket, Key="k", Body=b"x")
    with pytest.raises(ClientError, match="AccessDenied"):
        writer.get_object(Bucket=bucket, Key="k")


def test_a_machine_whose_role_lacks_sync_s_rule_fails_its_stack(account: Any) -> None:
    task = {"Type": "Task", "Resource": "arn:aws:states:::sagemaker:createTrainingJob.sync", "End": True}
    definition = {"StartAt": "Train", "States": {"Train": task}}
    body = {
        "Resources": {
            "Role": role("states.amazonaws.com", "sagemaker:*"),
            "Machine": {
                "Type": "AWS::StepFunctions::StateMachine",
                "Properties": {
                    "RoleArn": {"Fn::GetAtt": ["Role", "Arn"]},
                    "DefinitionString": json.dumps(definition),
                },
            },
        }
    }
    stack = deploy(account, body)
    assert stack["StackStatus"] == "ROLLBACK_COMPLETE"
    assert "is not authorized to create managed-rule" in reasons(account, stack)
