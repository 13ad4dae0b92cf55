"""A request against the service's own model, as botocore ships it.

botocore checks names, types and minimum lengths on the client's side alone. The service also checks maximum
lengths, patterns, enumerations and ranges, and a request that didn't come through botocore (Step Functions'
Arguments) is checked nowhere else. Messages follow the service's:
"N validation errors detected: Value 'x' at 'trainingJobName' failed to satisfy constraint: ...".
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
from botocore.model import Shape

from local_aws.json_service import ApiError

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float, str),
}

# The model's patterns are Java's, whose \p{..} Python doesn't know. `\w` lets in an underscore more than
# \p{L} and \p{N}, and every pattern that has those allows it anyway.
_JAVA_CLASSES = {
    r"\p{L}": r"\w",
    r"\p{N}": r"\d",
    r"\p{Z}": " \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
    r"\p{Alnum}": "a-zA-Z0-9",
}


@cache
def _input_shape(service: str, operation: str) -> Shape:
    model = botocore.session.get_session().get_service_model(service)
    shape = model.operation_model(operation).input_shape
    assert shape is not None, f"{service}:{operation} takes no parameters"
    return shape


@cache
def _pattern(java: str) -> re.Pattern[str]:
    for theirs, ours in _JAVA_CLASSES.items():
        java = java.replace(theirs, ours)
    return re.compile(java)


def check(service: str, operation: str, request: dict[str, Any]) -> None:
    """Raises ApiError, a ValidationException that lists everything wrong with `request`."""
    problems = list(_problems(_input_shape(service, operation), request, ""))
    if problems:
        errors = "1 validation error" if len(problems) == 1 else f"{len(problems)} validation errors"
        raise ApiError("ValidationException", f"{errors} detected: {'; '.join(problems)}")


def _problems(shape: Any, value: Any, at: str) -> Iterator[str]:
    expected: Any = _PYTHON_TYPES.get(shape.type_name)
    if expected is None:
        return
    if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
        yield f"Value '{value}' at '{at}' failed to satisfy constraint: Member must be a {shape.type_name}"
        return
    yield from _constraint_problems(shape, value, at)
    if shape.type_name == "structure":
        for name in shape.required_members:
            if value.get(name) is None:
                yield (
                    f"Value null at '{_path(at, name)}' failed to satisfy constraint: Member must not be null"
                )
        for name, member in value.items():
            if name not in shape.members:
                yield f"'{_path(at, name)}' is not a parameter; there are {', '.join(sorted(shape.members))}"
            elif member is not None:
                yield from _problems(shape.members[name], member, _path(at, name))
    elif shape.type_name == "list":
        for index, member in enumerate(value):
            yield from _problems(shape.member, member, f"{at}.{index + 1}.member")
    elif shape.type_name == "map":
        for key, member in value.items():
            yield from _problems(shape.key, key, at)
            yield from _problems(shape.value, member, f"{at}.{key}")


def _constraint_problems(shape: Any, value: Any, at: str) -> Iterator[str]:
    constraints = shape.metadata
    size = value if isinstance(value, int | float) else len(value) if hasattr(value, "__len__") else None
    word = "value" if isinstance(value, int | float) else "length"
    said = f"Value '{value}' at '{at}' failed to satisfy constraint: Member must"
    if size is not None and not isinstance(value, bool):
        if "min" in constraints and size < constraints["min"]:
            yield f"{said} have {word} greater than or equal to {constraints['min']}"
        if "max" in constraints and size > constraints["max"]:
            yield f"{said} have {word} less than or equal to {constraints['max']}"
    if isinstance(value, str):
        if "pattern" in constraints and not _pattern(constraints["pattern"]).fullmatch(value):
            yield f"{said} satisfy regular expression pattern: {constraints['pattern']}"
        if "enum" in constraints and value not in constraints["enum"]:
            yield f"{said} satisfy enum value set: [{', '.join(constraints['enum'])}]"


def _path(at: str, name: str) -> str:
    lowered = name[0].lower() + name[1:]
    return f"{at}.{lowered}" if at else lowered
