"""A run from its input to its summary: check, record, fan out, compare, report.

Variables of a run: `defaults`, `bucket`, then `problems`, then `run_id`, `parameters`,
`job_prefix`, then `replicas`, the results. Every way to fail has an Error to search for.
"""

from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.jsonata import jsonata
from infra.replica_states import REDRIVE_REFUSED, REPLICA_FAILED, replica_states
from infra.run_objects import RESULT_FIELDS, write_run_file
from infra.training_job_state import JOB_PREFIX
from infra.validation_jsonata import defaults, problems_expression, resolved_expression
from trainer.run_spec import MAX_REPLICAS

# An execution's Cause ends at 32,768 characters, and a character may take four bytes.
CAUSE_CHARACTERS: Final = 8000

# The execution's name, in the characters of a run id (layout.RUN_ID_PATTERN). A name of nothing
# but other characters leaves an empty id, and gets one of its own.
_CLEAN_NAME: Final = (
    "$replace($replace($states.context.Execution.Name, /[^A-Za-z0-9._-]+/, '-'), /^[^A-Za-z0-9]+/, '')"
)
RUN_ID: Final = (
    f"($clean := {_CLEAN_NAME}; $clean != '' ? $clean : 'run-' &"
    " $substring($hash($states.context.Execution.Id, 'SHA-256'), 0, 10))"
)


def run_states(scope: Construct, *, bucket_name: str, image_uri: str, role_arn: str) -> sfn.IChainable:
    """The state machine's first state, the others chained to it."""
    begin = sfn.Pass.jsonata(
        scope,
        "Defaults",
        comment="What a run does where its input says nothing else",
        assign={"defaults": defaults(), "bucket": bucket_name},
    )
    check = sfn.Pass.jsonata(
        scope,
        "CheckParameters",
        comment="Types, bounds and rules of every run parameter, generated from RunSpec",
        assign={"problems": jsonata(problems_expression())},
    )
    is_valid = sfn.Choice.jsonata(scope, "ParametersValid?", comment="Nothing has been started yet")
    name_run = sfn.Pass.jsonata(
        scope,
        "NameRun",
        comment="The execution's name is the run's id, in every key and job name",
        assign={"run_id": jsonata(RUN_ID), "parameters": jsonata(resolved_expression())},
    )
    name_jobs = sfn.Pass.jsonata(
        scope,
        "NameJobs",
        comment="What the names of all training jobs of this run begin with",
        assign={"job_prefix": jsonata(JOB_PREFIX)},
        outputs={"run_id": jsonata("$run_id")},
    )
    begin.next(check)
    check.next(is_valid)
    is_valid.when(
        sfn.Condition.jsonata(jsonata("$count($problems) > 0")),
        sfn.Fail.jsonata(
            scope,
            "InvalidRunParameters",
            comment="The input can not be used; the Cause names each parameter and its bounds",
            error="InvalidRunParameters",
            cause=jsonata(
                "$substring($join([$problems.(name & ': ' & text)], '; '), 0, "
                f"{CAUSE_CHARACTERS}) & '. Nothing was started: start a new execution.'"
            ),
        ),
    )
    is_valid.otherwise(name_run)
    name_run.next(name_jobs)
    name_jobs.next(_record(scope, then=_fan_out(scope, image_uri=image_uri, role_arn=role_arn)))
    return begin


def _record(scope: Construct, *, then: sfn.IChainable) -> sfn.IChainable:
    write = sfn.CustomState(scope, "WriteRunFile", state_json=write_run_file())
    is_taken = sfn.Choice.jsonata(scope, "NameTaken?", comment="S3 answers 412 where the object exists")
    taken = sfn.Fail.jsonata(
        scope,
        "RunNameTaken",
        comment="A run of this name exists, and its log can't be shared",
        error="RunNameTaken",
        cause=jsonata(
            "'There is a run ' & $run_id & ' in this bucket already; nothing was started."
            " Start a new execution under another name.'"
        ),
    )
    refused = sfn.Fail.jsonata(
        scope,
        "RunNotRecorded",
        comment="The bucket can not be written to",
        error="RunNotRecorded",
        cause=jsonata(
            "'run.json could not be written to bucket ' & $bucket & '; nothing was started. '"
            " & $substring($failure, 0, 2048)"
        ),
    )
    write.add_catch(
        is_taken,
        errors=["States.ALL"],
        assign={"failure": jsonata("$states.errorOutput.Error & ': ' & $states.errorOutput.Cause")},
    )
    is_taken.when(
        sfn.Condition.jsonata(jsonata("$contains($failure, /PreconditionFailed|pre-condition|412/)")), taken
    )
    is_taken.otherwise(refused)
    write.next(then)
    return write


def _fan_out(scope: Construct, *, image_uri: str, role_arn: str) -> sfn.IChainable:
    fan_out = sfn.Map.jsonata(
        scope,
        "FanOut",
        comment="One iteration a replica, all at once: they wait for each other",
        items=sfn.ProvideItems.jsonata(jsonata("[0..$parameters.n_replicas - 1]")),
        item_selector={"rank": jsonata("$states.context.Map.Item.Value")},
        max_concurrency=MAX_REPLICAS,
        assign={"replicas": jsonata("$states.result")},
        outputs={"run_id": jsonata("$run_id")},
    )
    fan_out.item_processor(replica_states(scope, image_uri=image_uri, role_arn=role_arn))
    fan_out.add_catch(
        _stop_all(scope),
        errors=["States.ALL"],
        assign={
            "failure": jsonata(
                f"$states.errorOutput.Error = '{REPLICA_FAILED}' ? $states.errorOutput.Cause :"
                f" $states.errorOutput.Error & ': ' & $states.errorOutput.Cause & ' {REDRIVE_REFUSED}'"
            )
        },
        outputs={"run_id": jsonata("$run_id")},
    )
    fan_out.next(_compare(scope))
    return fan_out


def _stop_all(scope: Construct) -> sfn.IChainable:
    """Stop every job the run may have left. Step Functions tries that too, but promises nothing.

    Which attempt the other ranks were at is known to their own iterations only, so all names are
    asked for; a job that has ended, or never was, is refused and that is fine.
    """
    stop = sfn.CustomState(
        scope,
        "StopJob",
        state_json={
            "Type": "Task",
            "Comment": "Most of these have ended, or never were",
            "Resource": "arn:aws:states:::aws-sdk:sagemaker:stopTrainingJob",
            "Arguments": {"TrainingJobName": jsonata("$states.input.job_name")},
            "Output": {},
        },
    )
    stop.add_retry(
        errors=["SageMaker.ThrottlingException"],
        interval=Duration.seconds(2),
        max_attempts=5,
        backoff_rate=1.5,
        jitter_strategy=sfn.JitterType.FULL,
    )
    stopped = sfn.Pass.jsonata(scope, "JobStopped", comment="This job runs no longer", outputs={})
    stop.add_catch(stopped, errors=["States.ALL"])
    stop.next(stopped)
    stop_all = sfn.Map.jsonata(
        scope,
        "StopJobs",
        comment="Whatever the run has left is stopped, once more and by name",
        items=sfn.ProvideItems.jsonata(
            jsonata(
                "[[0..$parameters.n_replicas - 1].($rank_ := $; [0..$parameters.max_relaunches]."
                "($job_prefix & '-r' & $string($rank_) & '-a' & $string($)))]"
            )
        ),
        item_selector={"job_name": jsonata("$states.context.Map.Item.Value")},
        max_concurrency=5,
        outputs={"run_id": jsonata("$run_id")},
    )
    stop_all.item_processor(stop)
    failed = sfn.Fail.jsonata(
        scope,
        "ReplicaFailed",
        comment="A replica failed more often than it may; the Cause says which, why, and where its log is",
        error=REPLICA_FAILED,
        cause=jsonata(f"$substring($failure, 0, {CAUSE_CHARACTERS})"),
    )
    stop_all.add_catch(failed, errors=["States.ALL"], outputs={"run_id": jsonata("$run_id")})
    stop_all.next(failed)
    return stop_all


def _compare(scope: Construct) -> sfn.IChainable:
    agree = sfn.Choice.jsonata(
        scope, "ReplicasAgree?", comment="Replicas that took the same means have the same weights, to the bit"
    )
    summary = ", ".join(f"'{name}': $replicas[0].{name}" for name in RESULT_FIELDS)
    done = sfn.Pass.jsonata(
        scope,
        "Summary",
        comment="Where the model is and what the replicas say about it",
        outputs=jsonata(
            f"{{'run_id': $run_id, {summary}, 'replicas': [$replicas.{{'rank': rank, 'status': status,"
            " 'attempts': attempts, 'job_name': job_name, 'rounds': rounds, 'weights_hash': weights_hash}]}"
        ),
    )
    diverged = sfn.Fail.jsonata(
        scope,
        "ReplicasDiverged",
        comment="All have finished, but not with the same weights: none of them can be trusted",
        error="ReplicasDiverged",
        cause=jsonata(
            "'The replicas ended with different weights: ' & $join([$replicas.('rank ' & $string(rank) & ' '"
            " & ($exists(weights_hash) ? $substring($string(weights_hash), 0, 64) : 'none'))], ', ')"
            f" & '. {REDRIVE_REFUSED}'"
        ),
    )
    agree.when(
        sfn.Condition.jsonata(
            jsonata(
                "$count([$replicas.weights_hash]) = $parameters.n_replicas"
                " ? $count($distinct([$replicas.weights_hash])) = 1 : false"
            )
        ),
        done,
    )
    agree.otherwise(diverged)
    return agree
