"""Custom resource: start a build, and let the build answer CloudFormation.

Runs as an inline Lambda: this one file, at most 4,096 characters, nothing but the runtime's boto3.
"""

import json
import urllib.request
from typing import Any

import boto3

# What the buildspec needs for its answer (CloudFormation: "Custom resource response objects").
ANSWER_FIELDS = ("ResponseURL", "StackId", "RequestId", "LogicalResourceId")


def handler(event: dict[str, Any], context: object) -> None:
    """Start a build for Create and Update. Deleting keeps the images: finished runs name them."""
    if event["RequestType"] == "Delete":
        answer(event, "SUCCESS", "Images stay in their repository")
        return
    properties = event["ResourceProperties"]
    variables = {name: event[name] for name in ANSWER_FIELDS}
    variables["ImageUri"] = properties["ImageUri"]
    try:
        build = boto3.client("codebuild").start_build(
            projectName=properties["Project"],
            environmentVariablesOverride=[
                {"name": name, "value": value, "type": "PLAINTEXT"} for name, value in variables.items()
            ],
        )["build"]
    except Exception as error:  # whatever it is: CloudFormation waits an hour for an answer
        answer(event, "FAILED", f"The build could not be started: {error}")
        raise
    print(f"started={build['id']} image={properties['ImageUri']}")


def answer(event: dict[str, Any], status: str, reason: str) -> None:
    body = {
        "Status": status,
        "Reason": reason,
        # The same for ever: a new id would make CloudFormation delete the resource it replaces.
        "PhysicalResourceId": "trainer-image",
        **{name: event[name] for name in ANSWER_FIELDS[1:]},
    }
    # The URL is CloudFormation's own, signed for a PUT without a content type.
    request = urllib.request.Request(  # noqa: S310
        event["ResponseURL"], data=json.dumps(body).encode(), headers={"Content-Type": ""}, method="PUT"
    )
    urllib.request.urlopen(request, timeout=20)  # noqa: S310
