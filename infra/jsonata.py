"""JSONata inside a state machine: how an expression is marked as one."""

import re


def jsonata(expression: str) -> str:
    """`expression`, marked for Step Functions to evaluate.

    On one line: validators of definitions recognise no other, and JSONata doesn't care.
    """
    return "{% " + re.sub(r"\s*\n\s*", " ", expression).strip() + " %}"
