"""JSONata inside a state machine: marked as such, and the same few spellings everywhere."""


def jsonata(expression: str) -> str:
    """`expression`, marked for Step Functions to evaluate."""
    return "{% " + expression + " %}"
