"""The state machine's checks and RunSpec's are one: same verdict, same names, for any JSON."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from infra.jsonata import jsonata
from infra.run_states import RUN_ID
from infra.validation_jsonata import MOST_NAMES, defaults, problems_expression, resolved_expression
from trainer import layout
from trainer.run_rules import Rule
from trainer.run_spec import RULES, InvalidRunParameters, RunSpec, parse

Evaluate = Callable[..., Any]

INPUTS = 1000
SEED = 20240601
WIDE = "\N{GRINNING FACE}"  # four bytes of UTF-8, two units of UTF-16, one character
SCHEMA = RunSpec.model_json_schema()["properties"]

WHOLE = [name for name, field in SCHEMA.items() if field["type"] == "integer"]

PROBLEMS = jsonata(problems_expression())
RESOLVED = jsonata(resolved_expression())

ODD_TEXTS = [
    "",
    " ",
    "\n",
    "ml.m5.xlarge\n",
    "é",
    WIDE * 200,
    "a" * 2000,
    "null",
    "0",
    "\x00",
    "$",
    "{% 1 %}",
    "s3://bucket",
    "s3://bucket/key",
    "file:///folder",
    "/key",
    "a key",
    "a:key",
    "k" * 900,
    "k" * 901,
]
ODD_NUMBERS = [0, -0.0, -1, 1.5, 1e-320, 1e308, -1e308, json.loads("1e400"), 10**400, -(10**30), 2**53 + 1]
ODD_VALUES = [
    None, True, False, [], {}, [1], [[]], [{}], {"a": None}, ["ml.m5.xlarge"], *ODD_TEXTS, *ODD_NUMBERS,
]  # fmt: skip


PLAN = f"arn:aws:sagemaker:xx-nowhere-1:{'0' * 12}:training-plan/plan"
PAIRS = [
    {}, {"owner": "me"}, {"owner": ""}, {"": "x"}, {"a" * 128: "b" * 256}, {"a" * 129: "b"}, {"a": "b" * 257},
    {"a": "b" * 513}, {"a\n": "b"}, {"a": "b\n"}, {"a": "b\nc"}, {"aws:x": "y"}, {"Diloco:run": "y"},
    {"HF_TOKEN": "x"}, {"my_api_key": "x"}, {"TOKENIZERS_PARALLELISM": "false"}, {"Password": "x"},
    {"AWS_REGION": "x"}, {"RUN_URI": "x"}, {"RUN_URIS": "x"}, {"world_size": "3"}, {"9": "x"}, {"a b": "c"},
    {"a": None}, {"a": 1}, {"a": 1e308}, {"a": json.loads("1e400")}, {"a": {}}, {"a": ["b"]}, {"é": "x"},
    {"a": WIDE * 256}, {"a": WIDE * 513}, {f"n{number}": "x" for number in range(40)},
    {f"n{number}": "x" for number in range(41)}, {f"n{number}": "x" for number in range(81)},
]  # fmt: skip


def _near_a_bound(chance: random.Random, field: dict[str, Any]) -> Any:
    bounds = [field[key] for key in field if "inimum" in key or "aximum" in key]
    value = chance.choice(bounds) + chance.choice([-1, 0, 1])
    return float(value) if chance.random() < 0.3 else value


def _plausible(chance: random.Random, name: str, field: dict[str, Any]) -> Any:
    """Mostly valid by itself, and small, so that rules across fields are met and broken."""
    if field["type"] == "boolean":
        return chance.random() < 0.5
    if field["type"] == "object":
        return chance.choice(PAIRS)
    if field["type"] == "string":
        return chance.choice([field["default"], PLAN, "ml.m5.xlarge,ml.g5.xlarge", "file"])
    if field["type"] == "integer" and "timeout" not in name and not name.endswith("_s"):
        return chance.choice([1, 2, 3, 4, 6, 8, 12.0])
    return chance.choice([field["default"], _near_a_bound(chance, field)])


def _value(chance: random.Random, name: str, wildness: float) -> Any:
    if chance.random() < wildness:
        return chance.choice(ODD_VALUES)
    field = SCHEMA[name]
    if field["type"] in ("integer", "number") and chance.random() < 0.2:
        return _near_a_bound(chance, field)
    return _plausible(chance, name, field)


def _input(chance: random.Random) -> Any:
    if chance.random() < 0.05:
        return chance.choice(ODD_VALUES)
    wildness = chance.choice([0, 0, 0.1, 0.5])
    names = chance.sample(list(SCHEMA), chance.choice([0, 1, 2, 3, 6, len(SCHEMA)]))
    found = {name: _value(chance, name, wildness) for name in names}
    if chance.random() < 0.2:
        unknown = chance.choice(
            ["n_replica", "N_REPLICAS", "", " ", WIDE, "a.b", "$states", "input", "__proto__"]
        )
        found[unknown] = chance.choice(ODD_VALUES)
    if chance.random() < 0.2:
        found["Comment"] = chance.choice(ODD_VALUES)
    return found


def _pydantic(value: Any) -> set[str]:
    try:
        parse(value)
    except InvalidRunParameters as error:
        return set(error.problems)
    return set()


def test_a_thousand_inputs_get_the_same_verdict_and_names_from_both_checks(evaluate: Evaluate) -> None:
    chance = random.Random(SEED)
    valid, reported, given = 0, set[str](), defaults()
    for value in (_input(chance) for _ in range(INPUTS)):
        problems = evaluate(PROBLEMS, input_=value, defaults=given)
        names = {problem["name"] for problem in problems}
        assert names == _pydantic(value), value
        assert all(problem["text"] for problem in problems)
        reported |= names
        if not names:
            valid += 1
            resolved = evaluate(RESOLVED, input_=value, defaults=defaults())
            assert resolved == parse(value).model_dump(mode="json")
            assert [name for name in resolved if type(resolved[name]) is float] == [
                name
                for name in resolved
                if SCHEMA[name]["type"] == "number" and type(resolved[name]) is float
            ]
    # The generator reaches both verdicts often, and every field.
    assert valid > INPUTS / 10
    assert reported >= SCHEMA.keys() | {"input"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.left} {rule.relation} {rule.right}")
def test_every_rule_is_told_in_the_same_words(rule: Rule, evaluate: Evaluate) -> None:
    broken = {
        "total_steps": {"total_steps": 5, "sync_every": 2},
        "sync_every": {"sync_every": 2, "total_steps": 4, "fragments": 3},
        "fragment_sync_delay": {"fragment_sync_delay": 2, "sync_every": 2},
        "warmup_steps": {"warmup_steps": 5, "total_steps": 4},
        "timeout_s": {"timeout_s": 20_000},
        "startup_timeout_s": {"startup_timeout_s": 20_000},
        "max_runtime_s": {"max_runtime_s": 90_000, "use_spot": True},
        "keep_alive_period_s": {"keep_alive_period_s": 60, "use_spot": True},
        "training_plan_arn": {"training_plan_arn": PLAN, "use_spot": True},
        "input_mode": {"input_mode": "file"},
        "trainable": {"trainable": "mlp", "lora_rank": 4},
    }[rule.subject]
    with pytest.raises(InvalidRunParameters) as refused:
        parse(broken)
    problems = evaluate(PROBLEMS, input_=broken, defaults=defaults())
    words = {name: text.replace(".0", "") for name, text in refused.value.problems.items()}
    assert {problem["name"]: problem["text"] for problem in problems} == words
    assert rule.why in refused.value.problems[rule.subject]


def test_a_field_is_told_with_its_bounds(evaluate: Evaluate) -> None:
    problems = evaluate(PROBLEMS, input_={"n_replicas": 41, "model_name": ""}, defaults=defaults())
    assert problems == [
        {"name": "n_replicas", "text": "must be a whole number from 1 to 40, not 41"},
        {"name": "model_name", "text": 'must be a string of 1 to 200 characters on one line, not ""'},
    ]


def test_an_input_full_of_unknown_names_is_refused_without_looking_at_each(evaluate: Evaluate) -> None:
    """An execution's input holds 37,000 names at most; an expression may take a second."""
    problems = evaluate(PROBLEMS, input_=dict.fromkeys(map(str, range(37_000)), 0), defaults=defaults())
    assert [problem["name"] for problem in problems] == ["input"]
    few = evaluate(PROBLEMS, input_=dict.fromkeys(map(str, range(MOST_NAMES)), 0), defaults=defaults())
    assert len(few) == MOST_NAMES


@pytest.mark.parametrize("pairs", PAIRS, ids=lambda pairs: str(list(pairs)[:1])[:20])
@pytest.mark.parametrize("name", ["tags", "environment"])
def test_tags_and_environment_get_the_same_verdict(name: str, pairs: Any, evaluate: Evaluate) -> None:
    problems = evaluate(PROBLEMS, input_={name: pairs}, defaults=defaults())
    assert {problem["name"] for problem in problems} == _pydantic({name: pairs})


@pytest.mark.parametrize(
    ("variable", "refused"),
    [("HF_TOKEN", True), ("WANDB_API_KEY", True), ("DbPassword", False), ("DB_PASSWORD", True),
     ("SECRETS", True), ("TOKENIZERS_PARALLELISM", False), ("KEYBOARD", False), ("AWS_PROFILE", True),
     ("NCCL_DEBUG", False), ("AUTH", True), ("AUTHOR", False)],
)  # fmt: skip
def test_names_that_look_like_secrets_are_refused(variable: str, refused: bool) -> None:
    assert (_pydantic({"environment": {variable: "x"}}) == {"environment"}) is refused


@pytest.mark.parametrize("size", [1, MOST_NAMES - len(SCHEMA)])
def test_the_cause_of_an_invalid_input_is_short_enough(
    size: int, states: dict[str, Any], evaluate: Evaluate
) -> None:
    """AWS: a Cause has 32,768 bytes; four for each of these characters, at worst."""
    wild = {f"{number:03d}{WIDE * 60}": None for number in range(size)} | dict.fromkeys(SCHEMA, WIDE * 2000)
    problems = evaluate(PROBLEMS, input_=wild, defaults=defaults())
    cause = evaluate(states["InvalidRunParameters"]["Cause"], problems=problems)
    assert all(f"{name}: must be" in cause for name in SCHEMA)
    assert len(cause.encode()) <= 32_768
    assert len(json.dumps(problems).encode()) <= 256 * 1024


@pytest.mark.parametrize("name", ["a", "x" * 80, "é!(weird) name", "---", "..a", "a" + "é" * 79, "-" * 80])
def test_every_execution_name_makes_a_run_id(name: str, evaluate: Evaluate) -> None:
    context = {"Execution": {"Name": name, "Id": "arn:of:an:execution"}}
    run_id = evaluate(jsonata(RUN_ID), context=context)
    assert layout.check_run_id(run_id) == run_id
    if name.isascii() and name.isalnum():
        assert run_id == name
