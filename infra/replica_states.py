"""What happens to one rank: start its job, relaunch it when it fails, give the run up at last.

The states of one iteration of the run's Map. They read the variables of the run (`bucket`,
`run_id`, `job_prefix`, `parameters`) and keep their own: `rank`, `instance_type`, `attempt`,
`refusals`, `billable_s` of all attempts so far, `job_name`, `job_status`, `job_ending`, `failure`,
`repeatable`. An iteration ends with the replica's result, or fails as ReplicaFailed; that fails
the Map, and Step Functions stops the other iterations' jobs.

No Assign reads a variable that it sets as well: on AWS all its expressions see the old values, in
an emulator the later ones may see the new.
"""

from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.job_options import JobOptions
from infra.jsonata import condition, jsonata
from infra.replica_role import JOB_LOG_GROUP
from infra.run_objects import read_result, write_abort_marker, write_progress
from infra.training_job_state import (
    CREATION_ERRORS,
    JOB_NAME,
    QUOTA_ERRORS,
    THROTTLED,
    instance_type_of,
    train_replica,
)

REPLICA_FAILED: Final = "ReplicaFailed"
# Redrive would resume at the failed step, where job names and the abort marker are taken.
REDRIVE_REFUSED: Final = "Start a new execution under another name; redriving this one is not supported."

MOST_REFUSALS: Final = 10  # of one job's creation by throttling: with back-off about eight minutes

# The Cause of a failed job is the JSON of DescribeTrainingJob, cut off when long; of a refused
# request it is plain text. $parse throws on what isn't JSON, and a throw inside a Catch ends the
# execution, whereas a pattern just finds nothing. This one finds a whole JSON string, which $parse takes.
# \x5c is the backslash and \x2f the slash: JSONata looks for a pattern's end by counting brackets, and
# leaves out those after a backslash.
_PLAIN: Final = r'[^"\x5c\x00-\x1f]*'
_JSON_STRING: Final = rf'{_PLAIN}(?:\x5c(?:["\x5c\x2fbfnrt]|u[0-9a-fA-F]{{4}}){_PLAIN})*'
_REASON: Final = f'$match($states.errorOutput.Cause, /"FailureReason": *"({_JSON_STRING})"/).groups[0]'
_STATUS: Final = r'$match($states.errorOutput.Cause, /"TrainingJobStatus": *"([A-Za-z]+)"/).groups[0]'
_BILLABLE: Final = r'$match($states.errorOutput.Cause, /"BillableTimeInSeconds": *([0-9]+)/).groups[0]'
_ERROR: Final = "$states.errorOutput.Error & ': ' & $substring($states.errorOutput.Cause, 0, 1024)"
# A container that was killed had no time to say why (128 and SIGKILL's 9), and a person may not know that
# this is how the kernel deals with one that has no memory left.
_WAS_KILLED: Final = "$contains($reason, /exit code: 137/)"
KILLED_HINT: Final = (
    " (killed, most likely out of memory: take a larger instance_type, or a smaller batch_size)"
)
# What a new attempt would meet again, by the name at the beginning of the replica's failure text
# (trainer/failures.py, which a test holds this against; importing it would import the trainer).
NOT_WORTH_A_RELAUNCH: Final = (
    "AbsentObject",
    "AccessDenied",
    "BadDataSet",
    "BadModel",
    "BadSecret",
    "BadTrainer",
    "ForeignCheckpoint",
    "ForeignObject",
    "InvalidRunParameters",
    "NonFinite",
    "PeerLost",
    "ReplicasDiverged",
    "Stopped",
    "Superseded",
)
# The exit codes that say the same: all there is where the disk was too full for the failure text.
FINAL_EXIT_CODES: Final = (9, *range(10, 20), 23)
# SageMaker puts a word of its own before what the container wrote into output/failure, and the exit code
# after it. A ClientError is what it says of a request that can't be met: no such data, no such image.
_FINAL: Final = (
    f"/^(AlgorithmError: *)?({'|'.join(NOT_WORTH_A_RELAUNCH)}):"
    f"|^AlgorithmError: *, exit code: ({'|'.join(map(str, FINAL_EXIT_CODES))})$"
    "|^ClientError: (Data download failed|Cannot pull|Artifact upload failed)/"
)


def replica_states(scope: Construct, *, image_uri: str, role_arn: str, options: JobOptions) -> sfn.IChainable:
    """The iteration's first state, the others chained to it."""
    replica = sfn.Pass.jsonata(
        scope,
        "Replica",
        comment="One rank; each time it is started is an attempt, numbered from 0",
        assign={
            "rank": jsonata("$states.input.rank"),
            "instance_type": jsonata(instance_type_of("$states.input.rank")),
            "attempt": 0,
            "refusals": 0,
            "billable_s": 0,
        },
    )
    name_job = sfn.Pass.jsonata(
        scope,
        "NameJob",
        comment="A job name is never used twice, so each attempt has its own",
        assign={"job_name": jsonata(JOB_NAME)},
    )
    give_up = _give_up(scope)
    relaunch = _relaunch(scope, then=name_job, otherwise=give_up)
    train = sfn.CustomState(
        scope,
        "TrainReplica",
        state_json=train_replica(image_uri=image_uri, role_arn=role_arn, options=options),
    )
    train.add_retry(  # other runs hold the account's instances; they may end
        errors=list(QUOTA_ERRORS),
        interval=Duration.seconds(30),
        max_attempts=8,
        backoff_rate=1.5,
        max_delay=Duration.minutes(5),
        jitter_strategy=sfn.JitterType.FULL,
    )
    train.add_catch(
        _refused(scope, then=train, otherwise=give_up),
        errors=list(CREATION_ERRORS),
        assign={"failure": jsonata(f"'its training job was refused: ' & {_ERROR}")},
    )
    train.add_catch(relaunch, errors=["States.ALL"], assign=_failure())
    replica.next(name_job).next(train).next(_ended(scope, failed=relaunch, lost=give_up))
    return replica


def _ended(scope: Construct, *, failed: sfn.IChainable, lost: sfn.IChainable) -> sfn.IChainable:
    """The job has ended without an error of its own; whether it has finished is another question."""
    is_completed = sfn.Choice.jsonata(
        scope,
        "JobCompleted?",
        comment="A job that was stopped, by hand or by its time limit, has not finished its run",
    )
    not_completed = sfn.Pass.jsonata(
        scope,
        "NotCompleted",
        comment="Handled like a failed job, with the status as the reason",
        assign={
            "failure": jsonata(
                "'its training job ended as ' & $job_status & ($job_ending != $job_status ?"
                " ' (' & $job_ending & ')' : '')"
            ),
            "repeatable": False,  # whoever stopped it, meant it; a limit would be reached again
        },
    )
    result = sfn.CustomState(scope, "ReadResult", state_json=read_result())
    result.add_catch(
        lost,
        errors=["States.ALL"],
        assign={"failure": jsonata(f"'its job completed, but left no result that can be read: ' & {_ERROR}")},
    )
    is_completed.when(condition("$job_status = 'Completed'"), result)
    is_completed.otherwise(not_completed.next(failed))
    return is_completed


def _failure() -> dict[str, str]:
    """Why a job failed, and whether another attempt may do better."""
    found = f"$reason := {_REASON}; $status := {_STATUS};"
    unescaped = r"""$replace($parse('"' & $reason & '"'), /\s+/, ' ')"""
    return {
        "failure": jsonata(
            f"({found} $exists($reason) ? {unescaped} & ({_WAS_KILLED} ? '{KILLED_HINT}' : '') :"
            f" $exists($status) ? 'its training job ended as ' & $status : {_ERROR})"
        ),
        "repeatable": jsonata(
            f"({found} $states.errorOutput.Error != 'States.TaskFailed' ? false :"
            f" $exists($reason) ? $not($contains($reason, {_FINAL})) : true)"
        ),
        "billable_s": jsonata(f"($s := {_BILLABLE}; $exists($s) ? $billable_s + $number($s) : $billable_s)"),
    }


def _refused(scope: Construct, *, then: sfn.IChainable, otherwise: sfn.IChainable) -> sfn.IChainable:
    """Ask again after throttling only: a Retry knows errors by name, and this one has none."""
    throttled = sfn.Choice.jsonata(
        scope,
        "Throttled?",
        comment="Forty replicas ask in the same second; anything else would be refused again",
    )
    count = sfn.Pass.jsonata(
        scope,
        "CountRefusal",
        comment="The pause doubles with each refusal",
        assign={"refusals": jsonata("$refusals + 1")},
    )
    back_off = sfn.Wait.jsonata(
        scope,
        "BackOff",
        comment="Jitter, so that they don't all ask in the same second again",
        time=sfn.WaitTime.seconds(jsonata("$ceil($random() * $min([$power(2, $refusals), 60]))")),
    )
    throttled.when(
        condition(f"$contains($failure, {THROTTLED}) ? $refusals < {MOST_REFUSALS} : false"), count
    )
    throttled.otherwise(otherwise)
    count.next(back_off).next(then)
    return throttled


def _relaunch(scope: Construct, *, then: sfn.IChainable, otherwise: sfn.IChainable) -> sfn.IChainable:
    """Start the rank again under a new job name, or give the run up."""
    again = sfn.Choice.jsonata(
        scope,
        "Relaunch?",
        comment="Only after what a new attempt may change, and at most max_relaunches times",
    )
    mark = sfn.CustomState(scope, "MarkRelaunching", state_json=write_progress())
    pause = sfn.Wait.jsonata(
        scope,
        "Pause",
        comment="Where SageMaker found no instance, give it a minute or three to find one",
        time=sfn.WaitTime.seconds(
            jsonata("$contains($failure, 'CapacityError') ? 60 + $round(120 * $random()) : 0")
        ),
    )
    next_attempt = sfn.Pass.jsonata(
        scope,
        "NextAttempt",
        comment="The replica finds its checkpoint, and what its peers have put since",
        assign={"attempt": jsonata("$attempt + 1"), "refusals": 0},
    )
    again.when(condition("$repeatable ? $attempt < $parameters.max_relaunches : false"), mark)
    again.otherwise(otherwise)
    mark.add_catch(pause, errors=["States.ALL"])  # the peers may time out; the relaunch may still be in time
    mark.next(pause)
    pause.next(next_attempt).next(then)
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
            f" & '. Log: group {JOB_LOG_GROUP}, stream ' & $job_name & '/algo-1-*. {REDRIVE_REFUSED}'"
        ),
    )
    # A replica may have written the marker before: the first one stands.
    abort.add_catch(fail, errors=["States.ALL"])
    abort.next(fail)
    return abort
