"""JSONata inside a state machine: how an expression is marked as one."""

import json
import re
from typing import Any

from aws_cdk import aws_stepfunctions as sfn


def jsonata(expression: str) -> str:
    """`expression`, marked for Step Functions to evaluate.

    On one line: validators of definitions recognise no other, and JSONata doesn't care.
    """
    return "{% " + re.sub(r"\s*\n\s*", " ", expression).strip() + " %}"


def as_expression(value: Any) -> str:
    """A state's field, JSON with marked expressions in it, as one expression.

    For what JSON can't say: a member that is there only sometimes. JSONata's literals are JSON's.
    """
    if isinstance(value, dict):
        members = (f"{json.dumps(name)}: {as_expression(member)}" for name, member in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_expression, value))}]"
    if isinstance(value, str) and value.startswith("{%"):
        return f"({value.removeprefix('{%').removesuffix('%}').strip()})"
    return json.dumps(value)


def condition(expression: str) -> sfn.Condition:
    """`expression` as what a Choice goes by."""
    return sfn.Condition.jsonata(jsonata(expression))
