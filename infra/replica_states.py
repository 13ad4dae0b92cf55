"""What happens to one rank: start its job, relaunch it when it fails, give the run up at last.

The states of one iteration of the run's Map. They read the variables of the run (`bucket`,
`run_id`, `job_prefix`, `parameters`) and keep their own: `rank`, `attempt`, `job_name`,
`job_status`, `failure`, `repeatable`. An iteration ends with the replica's result, or fails as
ReplicaFailed; that fails the Map, and Step Functions then stops the jobs of the other iterations.
"""

from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.jsonata import jsonata
from infra.replica_role import JOB_LOG_GROUP
from infra.run_objects import read_result, write_abort_marker, write_progress
from infra.training_job_state import (
    CREATION_ERRORS,
    NEXT_JOB_NAME,
    QUOTA_ERRORS,
    THROTTLING_ERRORS,
    train_replica,
)

REPLICA_FAILED: Final = "ReplicaFailed"
# Redrive would resume at the failed step, where job names and the abort marker are taken.
REDRIVE_REFUSED: Final = "Start a new execution under another name; redriving this one is not supported."

# The Cause of a failed job is the JSON of DescribeTrainingJob, cut off when long; of a refused
# request it is plain text. $parse throws on what isn't JSON, and a throw inside a Catch ends the
# execution, whereas a pattern just finds nothing.
_REASON: Final = (
    r'$match($states.errorOutput.Cause, /"FailureReason": *"([^\\"]*(?:\\.[^\\"]*)*)"/).groups[0]'
)
_STATUS: Final = r'$match($states.errorOutput.Cause, /"TrainingJobStatus": *"([A-Za-z]+)"/).groups[0]'
_ERROR: Final = "$states.errorOutput.Error & ': ' & $substring($states.errorOutput.Cause, 0, 1024)"
# SageMaker puts its own word before what the container wrote into output/failure.
_PEER_LOST: Final = r"$contains($reason, /^(AlgorithmError: *)?PeerLost/)"

_KEEP_RANK: Final = {"rank": jsonata("$rank")}


def replica_states(scope: Construct, *, image_uri: str, role_arn: str) -> sfn.IChainable:
    """The iteration's first state, the others chained to it."""
    replica = sfn.Pass.jsonata(
        scope,
        "Replica",
        comment="One rank; each time it is started is an attempt, numbered from 0",
        assign={"rank": jsonata("$states.input.rank"), "attempt": -1},
    )
    next_attempt = sfn.Pass.jsonata(
        scope,
        "NextAttempt",
        comment="A job name is never used twice, so each attempt has its own",
        assign={"attempt": jsonata("$attempt + 1"), "job_name": jsonata(NEXT_JOB_NAME)},
    )
    train = sfn.CustomState(
        scope, "TrainReplica", state_json=train_replica(image_uri=image_uri, role_arn=role_arn)
    )
    is_completed = sfn.Choice.jsonata(
        scope,
        "JobCompleted?",
        comment="A job that was stopped, by hand or by its time limit, has not finished its run",
    )
    result = sfn.CustomState(scope, "ReadResult", state_json=read_result())

    replica.next(next_attempt)
    next_attempt.next(train)
    train.next(is_completed)
    is_completed.when(sfn.Condition.jsonata(jsonata("$job_status = 'Completed'")), result)

    give_up = _give_up(scope)
    relaunch = _relaunch(scope, then=next_attempt, otherwise=give_up)
    is_completed.otherwise(_not_completed(scope).next(relaunch))
    _retry_creation(train)
    train.add_catch(
        give_up,
        errors=list(CREATION_ERRORS),
        assign={"failure": jsonata(f"'SageMaker refused to create its training job. ' & {_ERROR}")},
        outputs=_KEEP_RANK,
    )
    train.add_catch(relaunch, errors=["States.ALL"], assign=_failure())
    result.add_catch(
        give_up,
        errors=["States.ALL"],
        assign={"failure": jsonata(f"'its job completed, but left no result that can be read. ' & {_ERROR}")},
    )
    return replica


def _retry_creation(train: sfn.CustomState) -> None:
    """Jitter, since all replicas ask in the same second. Validation errors are retried in vain."""
    train.add_retry(
        errors=list(QUOTA_ERRORS),
        interval=Duration.seconds(30),
        max_attempts=8,
        backoff_rate=1.5,
        max_delay=Duration.minutes(5),
        jitter_strategy=sfn.JitterType.FULL,
    )
    train.add_retry(
        errors=list(THROTTLING_ERRORS),
        interval=Duration.seconds(2),
        max_attempts=6,
        backoff_rate=1.5,
        max_delay=Duration.minutes(1),
        jitter_strategy=sfn.JitterType.FULL,
    )


def _failure() -> dict[str, str]:
    """Why a job failed, and whether another attempt makes sense. A peer's loss is not its own."""
    reason = f"($reason := {_REASON}; $status := {_STATUS}; "
    unescaped = r"""$replace($replace($reason, '\\n', ' '), '\\"', '"')"""
    return {
        "failure": jsonata(
            f"{reason} $exists($reason) ? {unescaped} :"
            f" $exists($status) ? 'its training job ended as ' & $status & '.' : {_ERROR})"
        ),
        "repeatable": jsonata(
            f"{reason} $states.errorOutput.Error != 'States.TaskFailed' ? false :"
            f" $exists($reason) ? $not({_PEER_LOST}) : true)"
        ),
    }


def _not_completed(scope: Construct) -> sfn.Pass:
    return sfn.Pass.jsonata(
        scope,
        "NotCompleted",
        comment="Handled like a failed job, with the status as the reason",
        assign={"failure": jsonata("'its training job ended as ' & $job_status & '.'"), "repeatable": True},
    )


def _relaunch(scope: Construct, *, then: sfn.State, otherwise: sfn.IChainable) -> sfn.IChainable:
    """Start the rank again under a new job name, or give the run up."""
    again = sfn.Choice.jsonata(
        scope, "Relaunch?", comment="Only a failure of its own, and at most max_relaunches times"
    )
    mark = sfn.CustomState(scope, "MarkRelaunching", state_json=write_progress())
    pause = sfn.Wait.jsonata(
        scope,
        "Pause",
        comment="Where SageMaker found no instance, give it a minute or three to find one",
        time=sfn.WaitTime.seconds(
            jsonata("$contains($failure, 'CapacityError') ? 60 + $round(120 * $random()) : 0")
        ),
        outputs=_KEEP_RANK,
    )
    again.when(
        sfn.Condition.jsonata(jsonata("$repeatable ? $attempt < $parameters.max_relaunches : false")), mark
    )
    again.otherwise(otherwise)
    mark.add_catch(pause, errors=["States.ALL"])
    mark.next(pause)
    pause.next(then)
    return again


def _give_up(scope: Construct) -> sfn.IChainable:
    """Tell the peers, which look for the marker while they wait, then fail."""
    abort = sfn.CustomState(scope, "WriteAbortMarker", state_json=write_abort_marker())
    fail = sfn.Fail.jsonata(
        scope,
        "GiveUp",
        comment="Fails the Map; the jobs of the other replicas are stopped",
        error=REPLICA_FAILED,
        cause=jsonata(
            "'rank ' & $string($rank) & ' failed in attempt ' & $string($attempt + 1) & ': ' & $failure"
            f" & ' Training job ' & $job_name & ', log group {JOB_LOG_GROUP}, stream '"
            f" & $job_name & '/algo-1-<time>. {REDRIVE_REFUSED}'"
        ),
    )
    # A replica may have written the marker before: the first one stands.
    abort.add_catch(fail, errors=["States.ALL"])
    abort.next(fail)
    return abort
