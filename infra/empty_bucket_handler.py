"""Custom resource of a sandbox: empty the bucket when its stack is deleted, so that it can go.

Runs as an inline Lambda: this one file, at most 4,096 characters, nothing but the runtime's boto3. Ours
and not CDK's `auto_delete_objects`, which brings a Node function with rights to more than it needs, and
touches the bucket's policy.
"""

import json
import time
import urllib.request
from typing import Any

import boto3

MARGIN_S = 60  # of the function's 15 minutes, for the answer


def handler(event: dict[str, Any], context: Any) -> None:
    """Delete every object and every unfinished upload; create and update do nothing."""
    try:
        if event["RequestType"] == "Delete":
            empty(event["ResourceProperties"]["Bucket"], context)
    except Exception as error:  # whatever it is: CloudFormation waits an hour for an answer
        answer(event, "FAILED", f"The bucket could not be emptied: {error}")
        raise
    answer(event, "SUCCESS", "done")


def empty(bucket: str, context: Any) -> None:
    """Raises TimeoutError where there are more objects than one call can delete; delete the stack again."""
    s3 = boto3.client("s3")
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        keys = [{"Key": found["Key"]} for found in page.get("Contents", [])]
        if keys:
            refused = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
            if refused.get("Errors"):
                raise RuntimeError(f"{len(refused['Errors'])} objects, first {refused['Errors'][0]}")
        if context.get_remaining_time_in_millis() < MARGIN_S * 1000:
            raise TimeoutError("there is more than one call can delete; delete the stack again")
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket):
        for upload in page.get("Uploads", []):
            s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


def answer(event: dict[str, Any], status: str, reason: str) -> None:
    body = {
        "Status": status,
        "Reason": reason,
        "PhysicalResourceId": event.get("PhysicalResourceId", f"empty-{int(time.time())}"),
        **{name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")},
    }
    # The URL is CloudFormation's own, signed for a PUT without a content type.
    request = urllib.request.Request(  # noqa: S310
        event["ResponseURL"], data=json.dumps(body).encode(), headers={"Content-Type": ""}, method="PUT"
    )
    urllib.request.urlopen(request, timeout=20)  # noqa: S310
