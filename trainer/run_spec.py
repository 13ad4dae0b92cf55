"""RunSpec: every parameter of a run, its default, bounds and meaning.

One flat JSON object. This file is read by the replica, by the client and, at synth time, by
the CDK app, which renders the same fields and the same rules into the state machine's own
validation. So both kinds of constraint are data: a field's bounds live in its pydantic
`Field`, and what binds several fields together lives in `RULES`, in a form so small that
JSONata can say it too.

`{}` is a smoke run: two replicas, four inner steps, a tiny random model on built-in text.
A leaf: imports nothing of ours and nothing heavier than pydantic.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from trainer.run_pairs import ENVIRONMENT, TAGS
from trainer.run_rules import Rule

MAX_REPLICAS: Final = 40  # an inline Map starts 40 iterations at once (Step Functions: inline mode)
MAX_RUNTIME_S: Final = 28 * 24 * 3600  # SageMaker: MaxRuntimeInSeconds is at most 28 days
BUILT_IN_DATA: Final = "builtin"
ONE_LINE: Final = r"^[^\x00-\x1f\x7f]+$"  # a hyperparameter of a training job is one line of text
BUILT_IN_CODE: Final = "builtin"
# s3://BUCKET/KEY, file:///FOLDER, or a key of the run's own bucket.
SOURCE: Final = r"^(s3://[^/:\x00-\x20\x7f]+/|file:///)?[^/:\x00-\x20\x7f][^:\x00-\x20\x7f]*$"
SOURCE_ARCHIVE: Final = ".tar.gz"  # a source_uri that ends so is an archive; any other is a folder
# SageMaker's S3Uri holds 1,024 characters, and a bucket's name may come before this.
SOURCE_CHARACTERS: Final = 900
COMMENT: Final = "Comment"  # the console's habit; accepted on top of the fields and ignored


def _json_number(value: object) -> object:
    """JSON has one kind of number: 4.0 is the integer 4, and true is no number at all."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


_KINDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a string",
}

_PATTERNS_IN_WORDS: Final = {
    ONE_LINE: "on one line",
    SOURCE: "as s3://BUCKET/KEY, file:///FOLDER or KEY",
}
# An ARN of nowhere in particular; the whole is SageMaker's own pattern (TrainingPlanArn).
TRAINING_PLAN_ARN: Final = r"^(arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:[0-9]{12}:training-plan/[A-Za-z0-9-]+)?$"

Int = Annotated[int, BeforeValidator(_json_number)]


class RunSpec(BaseModel):
    """The parameters of one run, checked. Build one from outside input with `parse`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # The gang
    n_replicas: Int = Field(
        2, ge=1, le=MAX_REPLICAS,
        description="Replicas, each one training job. A Step Functions Map runs 40 at once; a 41st "
        "would never start while the other 40 wait for it.",
    )  # fmt: skip
    max_relaunches: Int = Field(
        2, ge=0, le=10,
        description="How often one rank may be started again after a failure before the run is given up.",
    )  # fmt: skip

    # The instance (SageMaker's CreateTrainingJob); a run on local processes reads none of these
    instance_type: str = Field(
        "ml.m5.xlarge", pattern=r"^ml\.[a-z0-9-]+\.[a-z0-9-]+(,ml\.[a-z0-9-]+\.[a-z0-9-]+)*$",
        min_length=1, max_length=800,
        description="SageMaker instance type of every replica. Several, separated by commas, are given to "
        "the ranks in turn; the slowest sets the pace of all.",
    )  # fmt: skip
    volume_gb: Int = Field(
        30, ge=1, le=16384, description="EBS volume of an instance, GiB: model, data and checkpoints."
    )
    max_runtime_s: Int = Field(
        86_400, ge=60, le=MAX_RUNTIME_S,
        description="Seconds after which SageMaker stops a job: the real bound on what a run can cost.",
    )  # fmt: skip
    use_spot: bool = Field(False, description="Managed spot capacity: cheaper, and may be taken back.")
    max_wait_s: Int = Field(
        86_400, ge=60, le=MAX_RUNTIME_S,
        description="Seconds a spot job may take, waiting for capacity included; unused without use_spot.",
    )  # fmt: skip
    keep_alive_period_s: Int = Field(
        0, ge=0, le=3600,
        description="Seconds to keep an instance warm after its job. With the default warm-pool quota "
        "of 0 SageMaker keeps nothing, silently.",
    )  # fmt: skip

    max_pending_s: Int = Field(
        7200, ge=1800, le=MAX_RUNTIME_S,
        description="Seconds an accelerated instance may be waited for before SageMaker gives the job up; "
        "other types have no such bound. Peers wait no longer than startup_timeout_s.",
    )  # fmt: skip
    training_plan_arn: str = Field(
        "", pattern=TRAINING_PLAN_ARN, max_length=256,
        description="Training plan whose reserved instances the jobs take; empty takes on-demand ones.",
    )  # fmt: skip
    tags: TAGS.annotated() = Field(  # type: ignore[valid-type]
        {}, description="Tags of every training job besides the run's own, such as owner or team."
    )
    environment: ENVIRONMENT.annotated() = Field(  # type: ignore[valid-type]
        {}, description="Environment variables of every training job. Whoever may describe a job sees them."
    )

    # What to train, on what
    source_uri: str = Field(
        BUILT_IN_CODE, pattern=SOURCE, min_length=1, max_length=SOURCE_CHARACTERS,
        description="Your own trainer code, for trainer_module to be found in: a folder or a .tar.gz, as an "
        "s3:// or file:// URI or a key of the run's own bucket. `builtin` is what the image has.",
    )  # fmt: skip
    trainer_module: str = Field(
        "trainer.train", pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
        min_length=1, max_length=200,
        description="Module of the trainer function.",
    )  # fmt: skip
    trainer_fn: str = Field(
        "diloco_train", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=100,
        description="Function called as fn(manager=, rank=, world_size=, model_dir=, and the parameters from "
        "model_name to fragment_update_alpha).",
    )  # fmt: skip
    model_name: str = Field(
        "tiny-random", min_length=1, max_length=200, pattern=ONE_LINE,
        description="A built-in configuration, trained from random weights: tiny-random or small-random.",
    )  # fmt: skip
    dataset_uri: str = Field(
        BUILT_IN_DATA, min_length=1, max_length=1024, pattern=ONE_LINE,
        description="Folder of text files: an s3:// or file:// URI, or a prefix of the run's own bucket. "
        "A tenth of the files, chosen by hash, is held out. `builtin` is the trainer's own source.",
    )  # fmt: skip
    seq_len: Int = Field(64, ge=8, le=131_072, description="Tokens in a training sequence.")
    seed: Int = Field(0, ge=0, le=2**31 - 1, description="Seed of the initial weights and the data order.")

    # Inner steps: AdamW, each replica alone
    total_steps: Int = Field(4, ge=1, le=10_000_000, description="Inner steps of each replica.")
    batch_size: Int = Field(4, ge=1, le=65_536, description="Sequences in one forward pass.")
    gradient_accumulation: Int = Field(1, ge=1, le=65_536, description="Forward passes in one inner step.")
    lr: float = Field(1e-3, gt=0, le=10, description="Peak inner learning rate.")
    warmup_steps: Int = Field(
        0, ge=0, le=10_000_000, description="Inner steps of linear warm-up; a cosine to a tenth follows."
    )
    weight_decay: float = Field(0.1, ge=0, le=10, description="AdamW's weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, le=1e6, description="Gradients are clipped to this norm.")
    eval_every_rounds: Int = Field(
        1, ge=1, le=1_000_000, description="Rounds between held-out losses of the shared weights."
    )

    # Outer steps: DiLoCo (arXiv:2311.08105), in fragments Streaming DiLoCo (arXiv:2501.18512)
    sync_every: Int = Field(
        2, ge=1, le=1_000_000,
        description="Inner steps in which every fragment is synchronised once: the paper's H.",
    )  # fmt: skip
    outer_lr: float = Field(0.7, gt=0, le=10, description="Outer learning rate; the paper's 0.7.")
    outer_momentum: float = Field(
        0.9, ge=0, lt=1, description="Outer Nesterov momentum; the paper's 0.9. Short runs learn best with 0."
    )
    fragments: Int = Field(
        1, ge=1, le=1000, description="Parts of the model, synchronised in turn. 1 is plain DiLoCo."
    )
    fragment_sync_delay: Int = Field(
        0, ge=0, le=1_000_000,
        description="Inner steps between sending a fragment and needing its mean: the paper's tau. They "
        "hide the exchange.",
    )  # fmt: skip
    fragment_update_alpha: float = Field(
        0.0, ge=0, le=1,
        description="Share of the local weights kept when a mean arrives; 0 takes the shared ones.",
    )  # fmt: skip

    # The exchange
    wire_dtype: str = Field(
        "fp32", pattern=r"^(fp32|bf16|int8|int4)$", min_length=1, max_length=8,
        description="How pseudo-gradients travel: fp32, bf16, int8 or int4. The last two are quantised in "
        "blocks of 256, 3.9 and 7.8 times fewer bytes, with error feedback.",
    )  # fmt: skip
    mean_dtype: str = Field(
        "fp32",
        pattern=r"^(fp32|bf16)$",
        min_length=1,
        max_length=8,
        description="How means travel: fp32 or bf16.",
    )

    # Waiting for peers
    timeout_s: float = Field(
        1800.0, ge=1, le=MAX_RUNTIME_S,
        description="A peer whose progress stands still this long is lost, and the run is given up.",
    )  # fmt: skip
    startup_timeout_s: float = Field(
        3600.0, ge=1, le=MAX_RUNTIME_S,
        description="The same bound in the first round, when SageMaker may still be finding an instance.",
    )  # fmt: skip
    round_timeout_s: float = Field(
        14_400.0, ge=1, le=MAX_RUNTIME_S,
        description="The longest wait in one round, whatever progress the peers report.",
    )  # fmt: skip
    poll_interval_s: float = Field(
        1.0, ge=0.01, le=60,
        description="First pause between two looks at the bucket; grows to five times this, with jitter.",
    )  # fmt: skip

    @property
    def inner_steps_per_round(self) -> int:
        """Inner steps between two rounds: a round synchronises one fragment."""
        return self.sync_every // self.fragments

    @property
    def rounds(self) -> int:
        return self.total_steps // self.inner_steps_per_round

    def trainer_parameters(self) -> dict[str, Any]:
        """What a trainer function is given: the fields about training, not about where and how it runs."""
        names = list(RunSpec.model_fields)
        chosen = names[names.index("model_name") : names.index("fragment_update_alpha") + 1]
        return {name: getattr(self, name) for name in chosen}


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
    Rule("max_runtime_s", "at most", "max_wait_s", when="use_spot", why="the wait includes the run"),
    Rule("keep_alive_period_s", "at most", "0", when="use_spot", why="SageMaker keeps no spot instance warm"),
    Rule("training_plan_arn", "empty", "", when="use_spot", why="a plan's instances are reserved, not spot"),
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
    values |= {name: _json_number(value) for name, value in given.items()}
    usable = values.keys() - problems.keys()
    for rule in RULES:
        if rule.fields <= usable and not rule.holds(values):
            problems.setdefault(rule.subject, rule.text(values))
    if problems:
        raise InvalidRunParameters(problems)
    return RunSpec.model_validate(given)


def bounds(name: str) -> str:
    """What a field may be, in words, e.g. "a whole number from 1 to 40"."""
    schema = RunSpec.model_json_schema()["properties"][name]
    if schema["type"] == "object":
        return str(schema["words"])
    words = [_KINDS[schema["type"]]]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        words.append(f"from {_shown(low)} to {_shown(high)}")
    elif high is not None:
        words.append(f"above {_shown(schema['exclusiveMinimum'])}, at most {_shown(high)}")
    elif low is not None:
        words.append(f"from {_shown(low)} to below {_shown(schema['exclusiveMaximum'])}")
    if "maxLength" in schema:
        words.append(f"of {schema.get('minLength', 0)} to {schema['maxLength']} characters")
    pattern = schema.get("pattern", "")
    if choices := re.fullmatch(r"\^\(([a-z0-9|]+)\)\$", pattern):
        return "one of " + choices[1].replace("|", ", ")
    if pattern:
        words.append(_PATTERNS_IN_WORDS.get(pattern, f"matching {pattern}"))
    return " ".join(words)


def _shown(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)


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
