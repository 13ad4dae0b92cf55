"""The objects of a run that the state machine itself writes and reads.

Their keys are spelled by trainer/layout.py; a key that depends on the run or the rank is rendered
from it with a placeholder, so that a change of the layout changes the state machine too.

A `Body` is an object and not a string: Step Functions then writes it as plain JSON, whereas it is
said to write a string with quotes around it.
"""

from typing import Any, Final

from infra.jsonata import jsonata
from trainer.layout import RunLayout

_RUN: Final = "RUN-ID-HERE"
_RANK: Final = 9999  # a rank no run has, four digits like every rank in a key
_LAYOUT: Final = RunLayout(_RUN)
ANY_RUN: Final = _LAYOUT  # for `key`
ANY_RANK: Final = _RANK

_PUT: Final = "arn:aws:states:::aws-sdk:s3:putObject"
_GET: Final = "arn:aws:states:::aws-sdk:s3:getObject"
_KEEP_RANK: Final = {"rank": jsonata("$rank")}


def any_run(template: str) -> str:
    """The key of any run and rank, as an IAM policy writes it."""
    return template.replace(_RUN, "*").replace(f"{_RANK:04d}", "*")


# For the state machine's role: all it may write, and all it may read.
WRITTEN: Final = tuple(map(any_run, (_LAYOUT.run_file, _LAYOUT.progress(_RANK), _LAYOUT.abort)))
READ: Final = (any_run(_LAYOUT.result(_RANK)),)

# Of a replica's result, what the summary shows. 40 of them and all else have 256 KiB between two states.
RESULT_FIELDS: Final = ("model_uri", "weights_hash", "rounds", "first_loss", "last_loss", "bigram_loss")


def run_file() -> str:
    """JSONata for the key of run.json."""
    return key(_LAYOUT.run_file)


def key(template: str) -> str:
    """JSONata for a key of RunLayout(_RUN), with the run's id and the rank in place."""
    words = template.replace(_RUN, "' & $run_id & '")
    words = words.replace(f"{_RANK:04d}", "' & $formatNumber($rank, '0000') & '")
    return f"'{words}'"


def write_run_file() -> dict[str, Any]:
    """State: the run's parameters, resolved, before any job exists. Create-only."""
    return {
        "Type": "Task",
        "Comment": "The parameters all replicas read, written once: a second run of this name stops here",
        "Resource": _PUT,
        "Arguments": {
            "Bucket": jsonata("$bucket"),
            "Key": jsonata(run_file()),
            "Body": {"run_id": jsonata("$run_id"), "parameters": jsonata("$parameters")},
            "ContentType": "application/json",
            "IfNoneMatch": "*",
        },
        "Output": {"run_id": jsonata("$run_id")},
    }


def write_progress() -> dict[str, Any]:
    """State: restart the clock by which the peers judge this rank, while it is being relaunched."""
    return {
        "Type": "Task",
        "Comment": "Tells the peers that this rank is on its way again, so that they wait for it",
        "Resource": _PUT,
        "Arguments": {
            "Bucket": jsonata("$bucket"),
            "Key": jsonata(key(_LAYOUT.progress(_RANK))),
            "Body": {
                "run_id": jsonata("$run_id"),
                "rank": jsonata("$rank"),
                "state": "relaunching",
                "attempt": jsonata("$attempt + 1"),
            },
            "ContentType": "application/json",
        },
        "Output": _KEEP_RANK,
    }


def write_abort_marker() -> dict[str, Any]:
    """State: say why the run is given up, where every waiting replica looks. Create-only."""
    return {
        "Type": "Task",
        "Comment": "Tells the peers that the run is given up; somebody's earlier marker stands",
        "Resource": _PUT,
        "Arguments": {
            "Bucket": jsonata("$bucket"),
            "Key": jsonata(key(_LAYOUT.abort)),
            "Body": {
                "run_id": jsonata("$run_id"),
                "rank": jsonata("$rank"),
                "round": jsonata("null"),
                "reason": jsonata("$substring($failure, 0, 1024)"),
                "missing": [jsonata("$rank")],
                "by": "state machine",
            },
            "ContentType": "application/json",
            "IfNoneMatch": "*",
        },
        "Output": _KEEP_RANK,
    }


def read_result() -> dict[str, Any]:
    """State: what the replica says it has ended with; the iteration's output."""
    fields = ", ".join(f"'{name}': $result.{name}" for name in RESULT_FIELDS)
    return {
        "Type": "Task",
        "Comment": "What the replica ended with: the hash of its weights is compared with its peers'",
        "Resource": _GET,
        "Arguments": {"Bucket": jsonata("$bucket"), "Key": jsonata(key(_LAYOUT.result(_RANK)))},
        "Output": jsonata(
            "($body := $states.result.Body; $result := $type($body) = 'string' ? $parse($body) : $body;"
            " {'rank': $rank, 'status': 'Completed', 'attempts': $attempt + 1, 'job_name': $job_name,"
            " 'instance_type': $instance_type, 'billable_s': $billable_s, "
            f"{fields}"
            "})"
        ),
        "End": True,
    }
