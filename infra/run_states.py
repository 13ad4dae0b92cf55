"""A run from its input to its replicas: check parameters and quotas, record them, fan out.

Variables of a run: `defaults`, `bucket`, then `problems`, then `run_id`, `parameters`,
`job_prefix`, then those of quota_states.py, then `replicas`, the results, or `run_failure`. A
Map's iterations see them but have names of their own, since an inner variable can't be called
like an outer one (Step Functions guide, "Passing data between states with variables"). Every way
to fail has an Error to search for.
"""

from typing import Any, Final

from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.job_options import JobOptions
from infra.jsonata import condition, jsonata
from infra.quota_states import check_quotas
from infra.replica_states import REDRIVE_REFUSED, REPLICA_FAILED, replica_states
from infra.run_endings import CAUSE_CHARACTERS, compare_and_sum_up, stop_and_fail
from infra.run_objects import write_run_file
from infra.training_job_state import JOB_PREFIX
from infra.validation_jsonata import defaults, problems_expression, resolved_expression
from trainer.job_parameters import MAX_REPLICAS

# The execution's name, in the characters of a run id (layout.RUN_ID_PATTERN). A name of nothing
# but other characters leaves an empty id, and gets one of its own.
_CLEAN_NAME: Final = (
    "$replace($replace($states.context.Execution.Name, /[^A-Za-z0-9._-]+/, '-'), /^[^A-Za-z0-9]+/, '')"
)
RUN_ID: Final = (
    f"($clean := {_CLEAN_NAME}; $clean != '' ? $clean : 'run-' &"
    " $substring($hash($states.context.Execution.Id, 'SHA-256'), 0, 10))"
)


def run_states(
    scope: Construct, *, bucket_name: str, image_uri: str, role_arn: str, options: JobOptions
) -> sfn.IChainable:
    """The state machine's first state, the others chained to it."""
    begin = sfn.Pass.jsonata(
        scope,
        "Defaults",
        comment="What a run does where its input says nothing else",
        assign={
            "defaults": {name: _assignable(value) for name, value in defaults().items()},
            "bucket": bucket_name,
        },
    )
    fan_out = _fan_out(scope, replica_states(scope, image_uri=image_uri, role_arn=role_arn, options=options))
    begin.next(_check(scope, then=_name(scope, then=check_quotas(scope, then=_record(scope, then=fan_out)))))
    return begin


def _assignable(value: Any) -> Any:
    """An empty text as an expression, since validators of definitions take no empty one for a value."""
    return jsonata('""') if value == "" else value


def _check(scope: Construct, *, then: sfn.IChainable) -> sfn.IChainable:
    check = sfn.Pass.jsonata(
        scope,
        "CheckParameters",
        comment="Types, bounds and rules of every run parameter, generated from RunSpec",
        assign={"problems": jsonata(problems_expression())},
    )
    is_valid = sfn.Choice.jsonata(scope, "ParametersValid?", comment="Nothing has been started yet")
    invalid = sfn.Fail.jsonata(
        scope,
        "InvalidRunParameters",
        comment="The input can not be used; the Cause names each parameter and its bounds",
        error="InvalidRunParameters",
        cause=jsonata(
            f"$substring($join([$problems.(name & ': ' & text)], '; '), 0, {CAUSE_CHARACTERS})"
            f" & '. Nothing was started. {REDRIVE_REFUSED}'"
        ),
    )
    check.next(is_valid)
    is_valid.when(condition("$count($problems) > 0"), invalid)
    is_valid.otherwise(then)
    return check


def _name(scope: Construct, *, then: sfn.IChainable) -> sfn.IChainable:
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
    name_run.next(name_jobs).next(then)
    return name_run


def _record(scope: Construct, *, then: sfn.IChainable) -> sfn.IChainable:
    write = sfn.CustomState(scope, "WriteRunFile", state_json=write_run_file())
    is_taken = sfn.Choice.jsonata(scope, "NameTaken?", comment="S3 answers 412 where the object exists")
    taken = sfn.Fail.jsonata(
        scope,
        "RunNameTaken",
        comment="A run of this name exists, and its log can't be shared",
        error="RunNameTaken",
        cause=jsonata(
            f"'There is a run ' & $run_id & ' in this bucket already; nothing was started. {REDRIVE_REFUSED}'"
        ),
    )
    refused = sfn.Fail.jsonata(
        scope,
        "RunNotRecorded",
        comment="The bucket can not be written to",
        error="RunNotRecorded",
        cause=jsonata(
            "'run.json could not be written to bucket ' & $bucket & '; nothing was started: '"
            f" & $substring($run_failure, 0, 2048) & '. {REDRIVE_REFUSED}'"
        ),
    )
    write.add_catch(
        is_taken,
        errors=["States.ALL"],
        assign={"run_failure": jsonata("$states.errorOutput.Error & ': ' & $states.errorOutput.Cause")},
    )
    is_taken.when(
        condition("$contains($run_failure, /PreconditionFailed|pre-condition|Status Code: 412/)"), taken
    )
    is_taken.otherwise(refused)
    write.next(then)
    return write


def _fan_out(scope: Construct, replica: sfn.IChainable) -> sfn.IChainable:
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
    fan_out.item_processor(replica)
    fan_out.add_catch(
        stop_and_fail(scope),
        errors=["States.ALL"],
        assign={
            "run_failure": jsonata(
                f"$states.errorOutput.Error = '{REPLICA_FAILED}' ? $states.errorOutput.Cause :"
                f" $states.errorOutput.Error & ': ' & $substring($states.errorOutput.Cause, 0, 4000)"
                f" & '. {REDRIVE_REFUSED}'"
            )
        },
        outputs={"run_id": jsonata("$run_id")},
    )
    fan_out.next(compare_and_sum_up(scope))
    return fan_out
