"""Every key, prefix and environment name of a run, spelled in this one place.

A run owns four prefixes of one bucket. The log (`diloco-rdv/`) is write-once and kept as
long as the results; the payloads (`diloco-data/`) have a prefix of their own because an S3
lifecycle rule matches the beginning of a key, and they are what may expire.

A leaf: imports nothing of ours, so that the CDK app and the client can use it.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

RENDEZVOUS_PREFIX: Final = "diloco-rdv"
DATA_PREFIX: Final = "diloco-data"
CHECKPOINT_PREFIX: Final = "diloco-ckpt"
OUTPUT_PREFIX: Final = "diloco-out"
INPUT_PREFIX: Final = "diloco-in"  # what users upload: text, models; shared by all runs
SOURCE_ARCHIVE: Final = ".tar.gz"  # a source_uri that ends so is an archive; any other is a folder
# What counts as data in a folder: each file one text, or rows; plain or compressed.
TEXT_SUFFIXES: Final = (".txt", ".md", ".rst", ".py")
ROW_SUFFIXES: Final = (".jsonl", ".json", ".parquet")
COMPRESSION_SUFFIXES: Final = (".gz", ".zst", ".xz", ".bz2")
DATA_SUFFIXES: Final = tuple(
    kind + packed for kind in TEXT_SUFFIXES + ROW_SUFFIXES for packed in ("", *COMPRESSION_SUFFIXES)
)
DATA_SUFFIXES_IN_WORDS: Final = (
    f"{', '.join(TEXT_SUFFIXES + ROW_SUFFIXES)}, plain or with {', '.join(COMPRESSION_SUFFIXES)}"
)

# The rank channel of places that start replicas by environment instead of by arguments.
RANK_ENV: Final = "REPLICA_RANK"
INDEXED_JOB_ENV: Final = "JOB_COMPLETION_INDEX"  # set by Kubernetes in the pods of an Indexed Job
RUN_URI_ENV: Final = "RUN_URI"
SECRET_ENV: Final = "DILOCO_SECRET_ARN"  # noqa: S105  the ARN of a secret, whose members become environment
SAGEMAKER_BASE_ENV: Final = "SAGEMAKER_BASE_DIR"  # SageMaker's training toolkit uses this name too
SAGEMAKER_JOB_ENV: Final = "TRAINING_JOB_NAME"  # set by SageMaker in every training container
SAGEMAKER_BASE_DEFAULT: Final = "/opt/ml"
CODE_CHANNEL: Final = "code"  # SageMaker copies source_uri to input/data/code
DATA_CHANNEL: Final = "data"  # with another input_mode than stream, dataset_uri lies in input/data/data
CHECKPOINT_FOLDER: Final = "checkpoints"  # below the base folder; SageMaker mirrors it to S3

# A run id is part of keys, of job names and of local folders.
RUN_ID_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"

RUN_FILE: Final = "run.json"

# What a replica reports. Each is printed as `name=value` on one line a round, which SageMaker's
# MetricDefinitions pick up (metric_pattern), and stands under the same name in the JSON lines.
METRICS: Final = {
    "train_loss": "mean training loss of the round's inner steps, nats per token",
    "eval_loss": "held-out loss of the shared weights, nats per token",
    "lr": "inner learning rate at the end of the round",
    "grad_norm": "mean gradient norm of the round before clipping",
    "skipped_steps": "inner steps of this replica so far that were skipped, their loss or norm not finite",
    "tokens_per_s": "tokens trained on, per second of the round",
    "mfu": "share of the accelerator's peak bf16 arithmetic that training used, where the peak is known",
    "exchange_s": "seconds from the snapshot of the pseudo-gradient to its mean",
    "wait_s": "seconds of the exchange spent waiting for peers",
    "sent_bytes": "bytes this replica put for the round",
    "received_bytes": "bytes this replica fetched for the round",
    "pseudo_gradient_norm": "norm of this replica's pseudo-gradient",
    "mean_cosine": "cosine between this replica's pseudo-gradient and the mean; a low one shows drift",
}
TENSORBOARD_FOLDER: Final = "output/tensorboard"  # TensorBoardOutputConfig's default LocalPath


def metric_pattern(name: str) -> str:
    """The regular expression by which SageMaker finds one metric in a replica's output."""
    return rf"(?:^|\s){name}=([0-9.eE+-]+)"


JOB_HASH_CHARACTERS: Final = 10


def job_hash(execution_arn: str) -> str:
    """What the names of an execution's training jobs have in common, whatever its run is called.

    Job names are unique for ever in an account and region, and two state machines may run the same name.
    """
    return hashlib.sha256(execution_arn.encode()).hexdigest()[:JOB_HASH_CHARACTERS]


def check_run_id(run_id: str) -> str:
    """Return `run_id`, or raise ValueError saying what a run id may be."""
    if not re.fullmatch(RUN_ID_PATTERN, run_id):
        raise ValueError(
            f"run id {run_id!r}: must start with a letter or digit and hold only letters, digits, "
            "'.', '_' and '-', at most 80 characters"
        )
    return run_id


@dataclass(frozen=True)
class RunLayout:
    """The keys of one run, relative to the bucket (or to the folder that stands for it)."""

    run_id: str

    def __post_init__(self) -> None:
        check_run_id(self.run_id)

    # The log: JSON objects, each written once, `progress/` excepted.

    @property
    def log_prefix(self) -> str:
        return f"{RENDEZVOUS_PREFIX}/{self.run_id}"

    @property
    def run_file(self) -> str:
        return f"{self.log_prefix}/{RUN_FILE}"

    @property
    def abort(self) -> str:
        return f"{self.log_prefix}/abort.json"

    @property
    def initial(self) -> str:
        return f"{self.log_prefix}/initial/manifest.json"

    def initial_payload(self, rank: int, claim: int) -> str:
        return f"{self.log_prefix}/initial/rank_{rank:04d}.c{claim}.safetensors"

    @property
    def claims_prefix(self) -> str:
        return f"{self.log_prefix}/claims"

    @property
    def rounds_prefix(self) -> str:
        return f"{self.log_prefix}/log"

    def claim(self, rank: int, claim: int) -> str:
        return f"{self.claims_prefix}/rank_{rank:04d}.{claim}.json"

    def contribution(self, round_index: int, rank: int) -> str:
        return f"{self.round_prefix(round_index)}/rank_{rank:04d}.json"

    def roster(self, round_index: int) -> str:
        return f"{self.round_prefix(round_index)}/roster.json"

    def round_prefix(self, round_index: int) -> str:
        return f"{self.rounds_prefix}/round_{round_index:06d}"

    def mean(self, round_index: int, slice_index: int) -> str:
        return f"{self.round_prefix(round_index)}/mean_{slice_index:04d}.json"

    def event(self, round_index: int, rank: int) -> str:
        return f"{self.log_prefix}/events/round_{round_index:06d}/rank_{rank:04d}.json"

    @property
    def evaluations_prefix(self) -> str:
        return f"{self.log_prefix}/evaluations"

    def evaluation(self, rounds: int, rank: int) -> str:
        """One rank's share of the held-out loss after `rounds` rounds."""
        return f"{self.evaluations_prefix}/round_{rounds:06d}/rank_{rank:04d}.json"

    def progress(self, rank: int) -> str:
        return f"{self.log_prefix}/progress/rank_{rank:04d}.json"

    def result(self, rank: int) -> str:
        return f"{self.log_prefix}/results/rank_{rank:04d}.json"

    # Payloads and what a run leaves.

    def payload(self, round_index: int, rank: int, claim: int) -> str:
        return f"{DATA_PREFIX}/{self.run_id}/round_{round_index:06d}/rank_{rank:04d}.c{claim}.bin"

    def mean_payload(self, round_index: int, slice_index: int, rank: int, claim: int) -> str:
        name = f"mean_{slice_index:04d}.r{rank:04d}.c{claim}.bin"
        return f"{DATA_PREFIX}/{self.run_id}/round_{round_index:06d}/{name}"

    def checkpoint_prefix(self, rank: int) -> str:
        """The same for every job of a rank, so that a relaunched one finds what its predecessors saved."""
        return f"{CHECKPOINT_PREFIX}/{self.run_id}/rank_{rank:04d}"

    @property
    def output_prefix(self) -> str:
        return f"{OUTPUT_PREFIX}/{self.run_id}"

    @property
    def tensorboard_prefix(self) -> str:
        return f"{self.output_prefix}/tensorboard"

    @property
    def model_prefix(self) -> str:
        return f"{self.output_prefix}/model"

    @property
    def shared_state(self) -> str:
        """The manifest of the last shared weights and their outer momentum, for a run that resumes this."""
        return f"{self.output_prefix}/shared_state/manifest.json"

    def shared_state_payload(self, rank: int, claim: int) -> str:
        return f"{self.output_prefix}/shared_state/rank_{rank:04d}.c{claim}.safetensors"

    def metrics(self, rank: int) -> str:
        return f"{self.output_prefix}/metrics/rank_{rank:04d}.jsonl"
