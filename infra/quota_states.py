"""Is the account allowed as many instances as the run needs? Asked before any job exists.

Without the question, a run of eight on a quota of four would start four jobs, and pay for them while
they wait for four that are refused. Service Quotas can't be asked for a quota by name, so its list
is paged through: first the values applied to the account, then, for what isn't among them (the list
"may be incomplete", ListServiceQuotas, Service Quotas API reference), AWS's defaults. A page is
filtered at once: a few thousand quotas would never fit into the 256 KiB between two states.

What can't be told stops no run: a quota that is in neither list, or an account that may not ask.

Variables: `quota_needed` and `quota_found`, numbers by the quota's name; `quota_token` and
`quota_pages` of the list at hand.
"""

from typing import Final

from aws_cdk import Duration
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from infra.jsonata import condition, jsonata
from infra.replica_states import REDRIVE_REFUSED
from infra.training_job_state import instance_type_of

PAGE: Final = 100  # quotas; the most that MaxResults takes. SageMaker has some 3,500
MOST_PAGES: Final = 100  # a list that goes on for ever must not keep a run from starting
_LISTS: Final = {
    "ListQuotas": ("listServiceQuotas", "The quotas applied to this account, a page at a time"),
    "ListDefaultQuotas": ("listAWSDefaultServiceQuotas", "AWS's defaults, for what the account's list lacks"),
}
_KEEP_RUN: Final = {"run_id": jsonata("$run_id")}
_FIRST_PAGE: Final = {"quota_token": jsonata("''"), "quota_pages": 0}

_NEEDED: Final = f"""(
  $usage := ($parameters.use_spot ? ' for spot training job usage' : ' for training job usage');
  $types := [[0..$parameters.n_replicas - 1].({instance_type_of("$")})];
  $merge([$distinct($types).($type_ := $; {{$type_ & $usage: $count($types[$ = $type_])}})])
)"""
_SHORT: Final = (
    "[$each($quota_found, function($value, $name) { $value < $lookup($quota_needed, $name) ?"
    " {'name': $name, 'value': $value, 'needed': $lookup($quota_needed, $name)} })]"
)


def check_quotas(scope: Construct, *, then: sfn.IChainable) -> sfn.IChainable:
    """The first of the states between a run that has a name and `then`."""
    needed = sfn.Pass.jsonata(
        scope,
        "InstancesNeeded",
        comment="How many instances of which type the run needs at once, by the quota's name",
        assign={"quota_needed": jsonata(_NEEDED), "quota_found": {}, **_FIRST_PAGE},
        outputs=_KEEP_RUN,
    )
    judge = _judge(scope, then=then)
    defaults = sfn.Pass.jsonata(
        scope, "AskForDefaults", comment="The other list, from its first page", assign=dict(_FIRST_PAGE)
    )
    defaults.next(_page_through(scope, "ListDefaultQuotas", found=judge, otherwise=judge))
    needed.next(_page_through(scope, "ListQuotas", found=judge, otherwise=defaults))
    return needed


def _page_through(
    scope: Construct, name: str, *, found: sfn.IChainable, otherwise: sfn.IChainable
) -> sfn.IChainable:
    action, comment = _LISTS[name]
    ask = sfn.CustomState(
        scope,
        name,
        state_json={
            "Type": "Task",
            "Comment": comment,
            "Resource": f"arn:aws:states:::aws-sdk:servicequotas:{action}",
            "Arguments": jsonata(
                f"$merge([{{'ServiceCode': 'sagemaker', 'MaxResults': {PAGE}}},"
                " $quota_token != '' ? {'NextToken': $quota_token} : {}])"
            ),
            "Assign": {
                # What has been found stands: an applied value is worth more than a default.
                "quota_found": jsonata(
                    "$merge([$states.result.Quotas[$exists($lookup($quota_needed, QuotaName))]"
                    ".{QuotaName: Value}, $quota_found])"
                ),
                "quota_token": jsonata(
                    "$exists($states.result.NextToken) ? $string($states.result.NextToken) : ''"
                ),
                "quota_pages": jsonata("$quota_pages + 1"),
            },
            "Output": _KEEP_RUN,
        },
    )
    ask.add_retry(
        errors=["ServiceQuotas.TooManyRequestsException"],
        interval=Duration.seconds(2),
        max_attempts=4,
        backoff_rate=1.5,
        jitter_strategy=sfn.JitterType.FULL,
    )
    ask.add_catch(found, errors=["States.ALL"])  # denied: what is known by now is judged
    is_done = sfn.Choice.jsonata(scope, f"{name}Done?", comment="All that is needed found, or another page")
    is_done.when(condition("$count($keys($quota_needed)) = $count($keys($quota_found))"), found)
    is_done.when(condition(f"$quota_token != '' ? $quota_pages < {MOST_PAGES} : false"), ask)
    is_done.otherwise(otherwise)
    ask.next(is_done)
    return ask


def _judge(scope: Construct, *, then: sfn.IChainable) -> sfn.IChainable:
    suffices = sfn.Choice.jsonata(
        scope, "QuotasSuffice?", comment="A quota that nobody could tell stops no run"
    )
    too_small = sfn.Fail.jsonata(
        scope,
        "QuotaTooSmall",
        comment="The account may not have as many instances at once; the Cause has both numbers",
        error="QuotaTooSmall",
        cause=jsonata(
            f"$join({_SHORT}.('the quota ' & name & ' is ' & $string(value) & ', and this run needs '"
            " & $string(needed)), '; ') & '. Nothing was started. Ask for more in the console: Service"
            f" Quotas, Amazon SageMaker. {REDRIVE_REFUSED}'"
        ),
    )
    suffices.when(condition(f"$count({_SHORT}) > 0"), too_small)
    suffices.otherwise(then)
    return suffices
