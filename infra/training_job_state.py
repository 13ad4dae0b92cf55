"""The state that starts one replica: SageMaker's CreateTrainingJob, waited for.

A CustomState, because CDK's SageMakerCreateTrainingJob knows neither entry point, arguments, spot
nor keep-alive, and writes JSONata expressions into an ARN of its policy.

Variables it reads: `bucket`, `run_id` and `parameters` of the run; `rank`, `attempt`,
`job_name`, `instance_type` and `billable_s` of the replica.
"""

from typing import Any, Final

from infra.jsonata import jsonata
from infra.run_objects import run_file
from trainer import layout

# SageMaker: TrainingJobName, letters, digits and hyphens, unique in an account and region for ever.
JOB_NAME_CHARACTERS: Final = 63
HASH_CHARACTERS: Final = 10
_LONGEST_SUFFIX: Final = f"-{'h' * HASH_CHARACTERS}-r39-a10"  # RunSpec: at most 40 ranks, 10 relaunches
SLUG_CHARACTERS: Final = JOB_NAME_CHARACTERS - len(_LONGEST_SUFFIX)

# The hash tells apart runs of the same name: in two state machines, or years apart.
JOB_PREFIX: Final = (
    f"$substring($replace($run_id, /[^A-Za-z0-9]+/, '-'), 0, {SLUG_CHARACTERS})"
    f" & '-' & $substring($hash($states.context.Execution.Id, 'SHA-256'), 0, {HASH_CHARACTERS})"
)
JOB_NAME: Final = "$job_prefix & '-r' & $string($rank) & '-a' & $string($attempt)"

# How Step Functions names a request that SageMaker refused. Throttling has no name of its own: it
# comes as an AmazonSageMakerException, as do requests that can never succeed; the Cause tells.
QUOTA_ERRORS: Final = ("SageMaker.ResourceLimitExceededException", "SageMaker.ResourceLimitExceeded")
CREATION_ERRORS: Final = (
    *QUOTA_ERRORS,
    "SageMaker.AmazonSageMakerException",
    "SageMaker.SageMakerException",
    "SageMaker.ThrottlingException",
    "SageMaker.ResourceInUseException",
    "SageMaker.ResourceInUse",
    "SageMaker.ResourceNotFoundException",
    "SageMaker.ResourceNotFound",
)
THROTTLED: Final = "/Throttl|Rate exceeded|TooManyRequests/"


def instance_type_of(rank: str) -> str:
    """JSONata for the instance type of a rank: the types are given to the ranks in turn."""
    types = "$split($parameters.instance_type, ',')"
    return f"($rank_ := {rank}; $types_ := {types}; $types_[$rank_ % $count($types_)])"


def train_replica(*, image_uri: str, role_arn: str) -> dict[str, Any]:
    """The state, without what follows it."""
    return {
        "Type": "Task",
        "Comment": "One replica: a training job on one instance, until it ends",
        "Resource": "arn:aws:states:::sagemaker:createTrainingJob.sync",
        "Arguments": _request(image_uri=image_uri, role_arn=role_arn),
        # Of the description of a job, which is long, only this is of use.
        "Assign": {
            "job_status": jsonata("$states.result.TrainingJobStatus"),
            "billable_s": jsonata(
                "$billable_s + ($exists($states.result.BillableTimeInSeconds) ?"
                " $states.result.BillableTimeInSeconds : 0)"
            ),
        },
        "Output": {"rank": jsonata("$rank")},
    }


def _request(*, image_uri: str, role_arn: str) -> dict[str, Any]:
    run_uri = jsonata(f"'s3://' & $bucket & '/' & {run_file()}")
    return {
        "TrainingJobName": jsonata("$job_name"),
        "RoleArn": role_arn,
        "AlgorithmSpecification": {
            "TrainingImage": image_uri,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python", "-m", "trainer.replica_entrypoint"],
            # An argument holds 256 characters: the parameters are in run.json, not here.
            "ContainerArguments": ["--run", run_uri, "--rank", jsonata("$string($rank)")],
            "MetricDefinitions": [
                {"Name": name, "Regex": layout.metric_pattern(name)} for name in layout.METRICS
            ],
        },
        "Environment": {
            layout.RUN_URI_ENV: run_uri,
            layout.RANK_ENV: jsonata("$string($rank)"),
            "WORLD_SIZE": jsonata("$string($parameters.n_replicas)"),
        },
        # For people who look at the job in the console; a replica reads run.json.
        "HyperParameters": jsonata(
            "$merge($each($parameters, function($value, $name) {"
            " {$name: $substring($string($value), 0, 256)} }))"
        ),
        # One instance: several would join into one job with a network of its own.
        "ResourceConfig": jsonata(
            "$merge([{'InstanceCount': 1, 'InstanceType': $instance_type,"
            " 'VolumeSizeInGB': $parameters.volume_gb},"
            " $parameters.keep_alive_period_s > 0"
            " ? {'KeepAlivePeriodInSeconds': $parameters.keep_alive_period_s} : {}])"
        ),
        "StoppingCondition": jsonata(
            "$merge([{'MaxRuntimeInSeconds': $parameters.max_runtime_s},"
            " $parameters.use_spot ? {'MaxWaitTimeInSeconds': $parameters.max_wait_s} : {}])"
        ),
        "EnableManagedSpotTraining": jsonata("$parameters.use_spot"),
        # Isolated, a container could not reach S3, and every peer would wait for it in vain.
        "EnableNetworkIsolation": False,
        "OutputDataConfig": {
            "S3OutputPath": jsonata(f"'s3://' & $bucket & '/{layout.OUTPUT_PREFIX}/' & $run_id & '/jobs'")
        },
        "Tags": [
            {"Key": "diloco:run", "Value": jsonata("$run_id")},
            {"Key": "diloco:rank", "Value": jsonata("$string($rank)")},
        ],
    }
