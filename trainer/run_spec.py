"""RunSpec: every parameter of a run, its default, bounds and meaning.

One flat JSON object. This file is read by the replica, by the client and, at synth time, by
the CDK app, which renders the same fields and the same rules into the state machine's own
validation. So both kinds of constraint are data: a field's bounds live in its pydantic
`Field` (job_parameters.py, training_parameters.py, exchange_parameters.py), and what binds
several fields together lives in `RULES`, in a form so small that JSONata can say it too.

`{}` is a smoke run: two replicas, four inner steps, a tiny random model on built-in text.
Imports nothing heavier than pydantic.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ConfigDict, ValidationError

from trainer.exchange_parameters import ExchangeParameters
from trainer.job_parameters import JobParameters
from trainer.parameter_kinds import json_number, words
from trainer.run_rules import Rule
from trainer.training_parameters import TrainingParameters

COMMENT: Final = "Comment"  # the console's habit; accepted on top of the fields and ignored


class RunSpec(ExchangeParameters, TrainingParameters, JobParameters):  # pydantic takes the last base first
    """The parameters of one run, checked. Build one from outside input with `parse`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @property
    def inner_steps_per_round(self) -> int:
        """Inner steps between two rounds: a round synchronises one fragment."""
        return self.sync_every // self.fragments

    @property
    def rounds(self) -> int:
        return self.total_steps // self.inner_steps_per_round

    def trainer_parameters(self) -> dict[str, Any]:
        """What a trainer function is given: the fields about training, not about where and how it runs."""
        return {name: getattr(self, name) for name in TrainingParameters.model_fields}


# What binds fields together. Rendered here and into the state machine's JSONata alike.
RULES: Final = (
    Rule("total_steps", "a multiple of", "sync_every", why="the run would end with unsent work"),
    Rule("sync_every", "a multiple of", "fragments", why="each fragment needs its turn within sync_every"),
    Rule(
        "fragment_sync_delay * fragments", "below", "sync_every",
        why="a mean must be applied before the next fragment is sent",
    ),
    Rule("warmup_steps", "at most", "total_steps", why="the warm-up must end within the run"),
    Rule("timeout_s", "at most", "round_timeout_s", why="round_timeout_s is the outermost bound"),
    Rule("startup_timeout_s", "at most", "round_timeout_s", why="round_timeout_s is the outermost bound"),
    Rule("trainable", "empty", "", when="lora_rank", why="the adapters are all that trains"),
    Rule("max_runtime_s", "at most", "max_wait_s", when="use_spot", why="the wait includes the run"),
    Rule("keep_alive_period_s", "at most", "0", when="use_spot", why="SageMaker keeps no spot instance warm"),
    Rule("training_plan_arn", "empty", "", when="use_spot", why="a plan's instances are reserved, not spot"),
    Rule(
        "input_mode", "exactly", "stream", when="dataset_uri=builtin",
        why="the built-in text is in the image, not in S3",
    ),
)  # fmt: skip


class InvalidRunParameters(ValueError):
    """The run parameters can't be used. `problems` names each bad one and what it may be."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        super().__init__("; ".join(f"{name}: {text}" for name, text in self.problems.items()))


def parse(raw: object) -> RunSpec:
    """Check outside input and fill in defaults. Raises InvalidRunParameters naming all problems at once."""
    if not isinstance(raw, Mapping):
        raise InvalidRunParameters({"input": f"must be a JSON object of run parameters, not {_kind(raw)}"})
    given = {name: value for name, value in raw.items() if name != COMMENT}
    problems: dict[str, str] = {}
    try:
        RunSpec.model_validate(given)
    except ValidationError as error:
        for detail in error.errors():
            name = str(detail["loc"][0])
            problems[name] = _explain(name, given.get(name))
    values = {name: field.default for name, field in RunSpec.model_fields.items()}
    values |= {name: json_number(value) for name, value in given.items()}
    usable = values.keys() - problems.keys()
    for rule in RULES:
        if rule.fields <= usable and not rule.holds(values):
            problems.setdefault(rule.subject, rule.text(values))
    if problems:
        raise InvalidRunParameters(problems)
    return RunSpec.model_validate(given)


def bounds(name: str) -> str:
    """What a field may be, in words, e.g. "a whole number from 1 to 40"."""
    return words(RunSpec.model_json_schema()["properties"][name])


def _explain(name: str, value: Any) -> str:
    if name not in RunSpec.model_fields:
        return "no such run parameter"
    shown = repr(value)
    return f"must be {bounds(name)}, not {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _kind(raw: object) -> str:
    if raw is None:
        return "null"
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(raw), type(raw).__name__)
