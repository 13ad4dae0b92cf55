"""The kinds of value that run parameters take: patterns, and what they are called in words.

A leaf: imports nothing of ours.
"""

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

BUILT_IN_DATA: Final = "builtin"
BUILT_IN_CODE: Final = "builtin"
ONE_LINE: Final = r"^[^\x00-\x1f\x7f]+$"  # a hyperparameter of a training job is one line of text
NO_LINE_BREAK: Final = r"^[^\x00-\x1f\x7f]*$"  # the same, where empty means none
# s3://BUCKET/KEY, file:///FOLDER, or a key of the run's own bucket.
SOURCE: Final = r"^(s3://[^/:\x00-\x20\x7f]+/|file:///)?[^/:\x00-\x20\x7f][^:\x00-\x20\x7f]*$"
# SageMaker's S3Uri holds 1,024 characters, and a bucket's name may come before this.
SOURCE_CHARACTERS: Final = 900
# An ARN of nowhere in particular; the whole is SageMaker's own pattern (TrainingPlanArn).
TRAINING_PLAN_ARN: Final = r"^(arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:[0-9]{12}:training-plan/[A-Za-z0-9-]+)?$"

_KINDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
}

_PATTERNS_IN_WORDS: Final = {
    ONE_LINE: "on one line",
    NO_LINE_BREAK: "on one line",
    SOURCE: "as s3://BUCKET/KEY, file:///FOLDER or KEY",
}


def json_number(value: object) -> object:
    """JSON has one kind of number: 4.0 is the integer 4, and true is no number at all."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Int = Annotated[int, BeforeValidator(json_number)]


def words(schema: dict[str, Any]) -> str:
    """What a value of a JSON schema may be, e.g. "a whole number from 1 to 40"."""
    if schema["type"] == "object":
        return str(schema["words"])
    said = [_KINDS[schema["type"]]]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        said.append(f"from {_shown(low)} to {_shown(high)}")
    elif high is not None:
        said.append(f"above {_shown(schema['exclusiveMinimum'])}, at most {_shown(high)}")
    elif low is not None:
        said.append(f"from {_shown(low)} to below {_shown(schema['exclusiveMaximum'])}")
    if "maxLength" in schema:
        said.append(f"of {schema.get('minLength', 0)} to {schema['maxLength']} characters")
    pattern = schema.get("pattern", "")
    if choices := re.fullmatch(r"\^\(([a-z0-9|]+)\)\$", pattern):
        return "one of " + choices[1].replace("|", ", ")
    if pattern:
        said.append(_PATTERNS_IN_WORDS.get(pattern, f"matching {pattern}"))
    return " ".join(said)


def _shown(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)
