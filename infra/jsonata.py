"""JSONata inside a state machine: how an expression is marked as one."""

import re

from aws_cdk import aws_stepfunctions as sfn


def jsonata(expression: str) -> str:
    """`expression`, marked for Step Functions to evaluate.

    On one line: validators of definitions recognise no other, and JSONata doesn't care.
    """
    return "{% " + re.sub(r"\s*\n\s*", " ", expression).strip() + " %}"


def condition(expression: str) -> sfn.Condition:
    """`expression` as what a Choice goes by."""
    return sfn.Condition.jsonata(jsonata(expression))
