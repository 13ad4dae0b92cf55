"""Condition keys by which a bucket's policy tells a create-only put from another.

ministack knows S3's conditional writes, and evaluates bucket policies, but the second doesn't hear of
the first. Both keys are S3's ("Enforce conditional writes on Amazon S3 buckets", user guide):

- s3:if-none-match, the header's value, absent without the header;
- s3:ObjectCreationOperation, whether the request makes an object: PutObject, CopyObject and
  CompleteMultipartUpload do, the beginning and the parts of a multipart upload don't.
"""

from typing import Any

from ministack.core import iam_actions


def install() -> None:
    known = iam_actions.s3_service_context

    def with_conditional_writes(
        iam_action: str,
        query_params: dict[str, Any] | None,
        path: str = "",
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        context: dict[str, Any] = known(iam_action, query_params, path, headers)
        if iam_action == "s3:PutObject":
            context |= _conditions(query_params or {}, headers or {})
        return context

    iam_actions.s3_service_context = with_conditional_writes


def _conditions(query: dict[str, Any], headers: dict[str, str]) -> dict[str, str]:
    makes_object = "uploads" not in query and "partNumber" not in query
    context = {"s3:ObjectCreationOperation": "true" if makes_object else "false"}
    if "if-none-match" in headers:
        context["s3:if-none-match"] = headers["if-none-match"]
    return context
