"""How a run ends: all replicas agree, or they don't, or one has failed and the rest is stopped."""

from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.jsonata import condition, jsonata
from infra.replica_states import REDRIVE_REFUSED, REPLICA_FAILED
from infra.run_objects import RESULT_FIELDS

# An execution's Cause ends at 32,768 characters, and a character may take four bytes.
CAUSE_CHARACTERS: Final = 8000

# Of each replica, what the summary shows.
OF_EACH_REPLICA: Final = (
    "rank",
    "status",
    "attempts",
    "billable_s",
    "instance_type",
    "job_name",
    "rounds",
    "weights_hash",
)

_KEEP_RUN: Final = {"run_id": jsonata("$run_id")}


def compare_and_sum_up(scope: Construct) -> sfn.IChainable:
    """`replicas` holds the results of all ranks: the same weights everywhere, or the run has failed."""
    agree = sfn.Choice.jsonata(
        scope, "ReplicasAgree?", comment="Replicas that took the same means have the same weights, to the bit"
    )
    result = ", ".join(f"'{name}': $replicas[0].{name}" for name in RESULT_FIELDS)
    of_each = ", ".join(f"'{name}': {name}" for name in OF_EACH_REPLICA)
    summary = sfn.Pass.jsonata(
        scope,
        "Summary",
        comment="Where the model is, and what each replica has done for it",
        outputs=jsonata(
            f"{{'run_id': $run_id, {result}, 'billable_s': $sum($replicas.billable_s),"
            f" 'replicas': [$replicas.{{{of_each}}}]}}"
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
    hashes = "[$replicas.weights_hash]"
    agree.when(
        condition(f"$count({hashes}) = $parameters.n_replicas ? $count($distinct({hashes})) = 1 : false"),
        summary,
    )
    agree.otherwise(diverged)
    return agree


def stop_and_fail(scope: Construct) -> sfn.IChainable:
    """Stop every job the run may have left. Step Functions tries that too, but promises nothing.

    Which attempt the other ranks were at is known to their own iterations only, so all names are
    asked for: a job that has ended, or never was, is refused, and that is fine.
    """
    stop_jobs = sfn.Map.jsonata(
        scope,
        "StopJobs",
        comment="Whatever the run has left is stopped, once more and by name",
        items=sfn.ProvideItems.jsonata(
            jsonata(
                "[[0..$parameters.n_replicas - 1].($each_rank := $; [0..$parameters.max_relaunches]."
                "($job_prefix & '-r' & $string($each_rank) & '-a' & $string($)))]"
            )
        ),
        item_selector={"job_name": jsonata("$states.context.Map.Item.Value")},
        max_concurrency=5,  # StopTrainingJob is throttled like every call of SageMaker's
        outputs=_KEEP_RUN,
    )
    failed = sfn.Fail.jsonata(
        scope,
        "ReplicaFailed",
        comment="A replica failed more often than it may; the Cause says which, why, and where its log is",
        error=REPLICA_FAILED,
        cause=jsonata(f"$substring($run_failure, 0, {CAUSE_CHARACTERS})"),
    )
    stop_jobs.item_processor(_stop_job(scope))
    stop_jobs.add_catch(failed, errors=["States.ALL"], outputs=_KEEP_RUN)
    stop_jobs.next(failed)
    return stop_jobs


def _stop_job(scope: Construct) -> sfn.IChainable:
    stop = sfn.CustomState(
        scope,
        "StopJob",
        state_json={
            "Type": "Task",
            "Comment": "Most of these have ended, or never were",
            "Resource": "arn:aws:states:::aws-sdk:sagemaker:stopTrainingJob",
            "Arguments": {"TrainingJobName": jsonata("$states.input.job_name")},
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
    return stop
