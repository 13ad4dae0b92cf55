"""The run parameters about jobs: how many, on which instances, with whose code.

A mixin of RunSpec (run_spec.py), which is what everybody uses.
"""

from typing import Final

from pydantic import BaseModel, Field

from trainer.parameter_kinds import (
    BUILT_IN_CODE,
    RUN_ID_OR_NONE,
    SOURCE,
    SOURCE_CHARACTERS,
    TRAINING_PLAN_ARN,
    Int,
)
from trainer.run_pairs import ENVIRONMENT, TAGS

MAX_REPLICAS: Final = 40  # an inline Map starts 40 iterations at once (Step Functions: inline mode)
MAX_RUNTIME_S: Final = 28 * 24 * 3600  # SageMaker: MaxRuntimeInSeconds is at most 28 days


class JobParameters(BaseModel):
    """What the state machine reads of a run, to start its training jobs."""

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

    resume_from: str = Field(
        "", pattern=RUN_ID_OR_NONE, max_length=80,
        description="An ended run, whose last shared weights and outer momentum this one starts from; steps, "
        "data and schedule are its own. The number of replicas may differ. Empty starts anew.",
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

    # Whose code trains
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
