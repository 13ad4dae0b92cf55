"""What a run may be, and that everything wrong with one is said at once."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.run_spec import COMMENT, RULES, InvalidRunParameters, RunSpec, bounds, parse

EXAMPLES = sorted((Path(__file__).parents[2] / "runs" / "examples").glob("*.json"))


def problems(raw: object) -> dict[str, str]:
    with pytest.raises(InvalidRunParameters) as caught:
        parse(raw)
    return caught.value.problems


def test_no_parameters_are_the_smoke_run() -> None:
    spec = parse({})
    assert (spec.n_replicas, spec.instance_type, spec.total_steps, spec.sync_every) == (
        2,
        "ml.m5.xlarge",
        4,
        2,
    )
    assert (spec.model_name, spec.dataset_uri, spec.outer_lr, spec.outer_momentum) == (
        "tiny-random",
        "builtin",
        0.7,
        0.9,
    )
    assert spec.rounds == 2


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_valid(path: Path) -> None:
    parse(json.loads(path.read_text()))


def test_all_problems_are_named_at_once_with_their_bounds() -> None:
    found = problems({
        "n_replicas": 41, "lr": "fast", "use_spot": True, "max_wait_s": 60, "total_steps": 5,
        "learning_rate": 1, "model_name": 7, "seed": True,
    })  # fmt: skip
    assert found == {
        "n_replicas": "must be a whole number from 1 to 40, not 41",
        "lr": "must be a number above 0, at most 10, not 'fast'",
        "learning_rate": "no such run parameter",
        "model_name": "must be a string of 1 to 200 characters on one line, not 7",
        "seed": "must be a whole number from 0 to 2147483647, not True",
        "total_steps": "must be a multiple of sync_every (sync_every=2, total_steps=5): the run would end "
        "with unsent work",
        "max_runtime_s": "must be at most max_wait_s with use_spot (max_runtime_s=86400, max_wait_s=60): the "
        "wait includes the run",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ({"total_steps": 9, "sync_every": 4}, "total_steps"),
        ({"total_steps": 8, "sync_every": 4, "fragments": 3}, "sync_every"),
        (
            {"total_steps": 8, "sync_every": 4, "fragments": 2, "fragment_sync_delay": 2},
            "fragment_sync_delay",
        ),
        ({"total_steps": 8, "sync_every": 4, "fragment_sync_delay": 4}, "fragment_sync_delay"),
        ({"warmup_steps": 5}, "warmup_steps"),
        ({"use_spot": True, "max_runtime_s": 100, "max_wait_s": 99}, "max_runtime_s"),
        ({"use_spot": True, "keep_alive_period_s": 60}, "keep_alive_period_s"),
        ({"timeout_s": 20_000}, "timeout_s"),
        ({"startup_timeout_s": 20_000}, "startup_timeout_s"),
        ({"n_replicas": 0}, "n_replicas"),
        ({"n_replicas": 2.5}, "n_replicas"),
        ({"n_replicas": None}, "n_replicas"),
        ({"instance_type": "m5.xlarge"}, "instance_type"),
        ({"instance_type": "ml.m5.xlarge\n"}, "instance_type"),
        ({"trainer_fn": "os.system"}, "trainer_fn"),
        ({"outer_momentum": 1.0}, "outer_momentum"),
        ({"wire_dtype": "fp16"}, "wire_dtype"),
        ({"input_mode": "pipe", "dataset_uri": "text"}, "input_mode"),
        ({"input_mode": "file"}, "input_mode"),  # the built-in data set
        ({"lr": 0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"lr": [1e-3]}, "lr"),
    ],
)
def test_each_constraint_is_reported_under_its_field(raw: dict[str, Any], name: str) -> None:
    assert list(problems(raw)) == [name]


@pytest.mark.parametrize(
    "raw",
    [
        {"total_steps": 8, "sync_every": 4, "fragments": 2, "fragment_sync_delay": 1},
        {"use_spot": True, "max_runtime_s": 100, "max_wait_s": 100},
        {"max_wait_s": 60},  # asked only with use_spot
        {"input_mode": "fastfile", "dataset_uri": "text"},
        {"n_replicas": 40},
        {"n_replicas": 2.0},  # JSON has one kind of number
        {"lr": 1},
        {COMMENT: ["anything"]},
    ],
)
def test_what_is_allowed(raw: dict[str, Any]) -> None:
    spec = parse(raw)
    assert all(getattr(spec, name) == value for name, value in raw.items() if name != COMMENT)


@pytest.mark.parametrize("raw", [None, [], "x", 3, True])
def test_what_is_no_object_is_refused(raw: object) -> None:
    assert list(problems(raw)) == ["input"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from([*RunSpec.model_fields, COMMENT, "unknown"]), json_values, max_size=8)
    | json_values
)
def test_whatever_comes_in_is_answered_and_never_throws(raw: object) -> None:
    try:
        spec = parse(raw)
    except InvalidRunParameters as error:
        assert error.problems
    else:
        assert parse(spec.model_dump()) == spec


def test_every_field_says_what_it_means_and_has_bounds_in_words() -> None:
    for name, field in RunSpec.model_fields.items():
        assert field.description and field.description.endswith("."), name
        assert bounds(name).startswith(
            ("a whole number from", "a number", "true or false", "a string of", "one of ", "an object of")
        ), name
        parse({name: field.default})


def test_the_rules_speak_of_fields_that_exist() -> None:
    for rule in RULES:
        assert rule.fields <= RunSpec.model_fields.keys()


def test_a_trainer_is_told_about_training_and_nothing_else() -> None:
    given_to_it = parse({}).trainer_parameters()
    assert {"model_name", "dataset_uri", "total_steps", "fragment_update_alpha"} <= given_to_it.keys()
    assert not {"n_replicas", "instance_type", "trainer_fn", "timeout_s", "use_spot"} & given_to_it.keys()
