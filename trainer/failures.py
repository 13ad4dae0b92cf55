"""How a replica ends: its exit code, and the one line that says why.

The list of exit codes, once. What would only repeat is told from what a relaunch may heal, by
the code here and by the error's name at the start of the failure text, which is all that
SageMaker hands on (`FailureReason`).
"""

from dataclasses import dataclass
from typing import Final

from trainer.rendezvous import errors
from trainer.run_spec import InvalidRunParameters

FAILURE_TEXT_CHARS: Final = 1024  # SageMaker shows no more ("How Amazon SageMaker Processes Training Output")


class BadDataSet(Exception):
    """The data set is missing, empty, too small, damaged, or has too many unusable rows."""


class BadModel(Exception):
    """The model or its tokenizer is missing, is none that this trainer can train, or does not fit the run."""


class BadTrainer(Exception):
    """source_uri, trainer_module and trainer_fn name nothing that can be called, or nothing that trains."""


class ForeignCheckpoint(Exception):
    """A checkpoint of another run, rank or model lies in this replica's checkpoint folder."""


class CheckpointNotWritten(Exception):
    """A checkpoint couldn't be written, e.g. for a full disk: a failure would now cost more than a round."""


class BadSecret(Exception):
    """The secret that the deployment names is missing, or no JSON object of texts."""


@dataclass(frozen=True)
class Ending:
    """`relaunch` says whether the same rank, started again, may do better."""

    exit_code: int
    relaunch: bool
    meaning: str


ENDINGS: Final[dict[type[BaseException], Ending]] = {
    errors.Stopped: Ending(0, False, "asked to stop (SIGTERM), and did; there is no result"),
    InvalidRunParameters: Ending(10, False, "the run parameters can't be used"),
    BadTrainer: Ending(10, False, "trainer_module:trainer_fn can't be called or doesn't train"),
    BadModel: Ending(9, False, "the model or its tokenizer is missing or can't be used"),
    BadDataSet: Ending(11, False, "the data set is missing, too small, damaged or has too many bad rows"),
    BadSecret: Ending(19, False, "the secret is missing, or no JSON object of texts"),
    errors.AccessDenied: Ending(12, False, "the store refused this identity"),
    errors.NonFinite: Ending(13, False, "too many losses or gradients, or a pseudo-gradient, not finite"),
    errors.ReplicasDiverged: Ending(14, False, "the shared weights differ and none has a majority"),
    errors.PeerLost: Ending(15, False, "another replica was lost or the run was given up"),
    errors.Superseded: Ending(16, False, "a newer process has taken up this rank"),
    errors.ForeignObject: Ending(17, False, "an object of another run or model lies in this run's place"),
    errors.AbsentObject: Ending(18, False, "the bucket or an object that the log needs is gone"),
    ForeignCheckpoint: Ending(
        23, False, "another run's, rank's or model's checkpoint is in this one's place"
    ),
    errors.OddOneOut: Ending(20, True, "this replica's shared weights differ from the majority's"),
    errors.DamagedObject: Ending(21, True, "bytes in the store are not what their manifest says"),
    errors.StoreFailed: Ending(22, True, "the store did not answer properly"),
    CheckpointNotWritten: Ending(24, True, "a checkpoint could not be written, e.g. for a full disk"),
}
UNEXPECTED: Final = Ending(1, True, "anything else: a bug, out of memory, a full disk")


def ending_of(error: BaseException) -> Ending:
    """The ending that an exception means."""
    return next((ending for kind, ending in ENDINGS.items() if isinstance(error, kind)), UNEXPECTED)


def failure_text(error: BaseException, rank: int | None) -> str:
    """One line for people, facts first: "<ErrorName>: rank R: what, where, what to do"."""
    text = " ".join(str(error).split()) or "no message"
    who = "" if rank is None or f"rank {rank}" in text else f"rank {rank}: "
    return f"{type(error).__name__}: {who}{text}"[:FAILURE_TEXT_CHARS]
