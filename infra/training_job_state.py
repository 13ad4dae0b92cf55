"""The state that starts one replica: SageMaker's CreateTrainingJob, waited for.

A CustomState, because CDK's SageMakerCreateTrainingJob knows neither entry point, arguments, spot
nor keep-alive, and writes JSONata expressions into an ARN of its policy.

Variables it reads: `bucket`, `run_id` and `parameters` of the run; `rank`, `attempt`,
`job_name`, `instance_type` and `billable_s` of the replica.
"""

from typing import Any, Final

from infra.job_options import JobOptions
from infra.jsonata import as_expression, jsonata
from infra.run_objects import ANY_RANK, ANY_RUN, key, run_file
from trainer import layout
from trainer.layout import SOURCE_ARCHIVE
from trainer.parameter_kinds import BUILT_IN_CODE

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


# Instance families, as JSONata has a regular expression. MaxPendingTimeInSeconds is for accelerated
# ones; VolumeKmsKeyId for those without NVMe disks (ResourceConfig, SageMaker API reference).
ACCELERATED: Final = r"/^ml\.(g|gr|p|trn|inf)[0-9]/"
HAS_LOCAL_DISKS: Final = r"/^ml\.((g[4-9]|gr[0-9]|p[4-9]|trn)[a-z0-9-]*|[a-z]+[0-9]+[a-z]*d[a-z]*)\./"


def train_replica(*, image_uri: str, role_arn: str, options: JobOptions) -> dict[str, Any]:
    """The state, without what follows it."""
    return {
        "Type": "Task",
        "Comment": "One replica: a training job on one instance, until it ends",
        "Resource": "arn:aws:states:::sagemaker:createTrainingJob.sync",
        "Arguments": _arguments(image_uri, role_arn, options),
        # Of the description of a job, which is long, only this is of use.
        "Assign": {
            "job_status": jsonata("$states.result.TrainingJobStatus"),
            # Of a stopped job: by whom. `Stopped` is a person, `MaxRuntimeExceeded` a limit.
            "job_ending": jsonata("$states.result.SecondaryStatus"),
            "billable_s": jsonata(
                "$billable_s + ($exists($states.result.BillableTimeInSeconds) ?"
                " $states.result.BillableTimeInSeconds : 0)"
            ),
        },
        "Output": {"rank": jsonata("$rank")},
    }


def _arguments(image_uri: str, role_arn: str, options: JobOptions) -> str:
    """One expression: a job without a channel has no InputDataConfig, which an object can't say.

    An array leaves out members that have no value, and `a ? b` has none where `a` is false.
    """
    always = as_expression(_request(image_uri, role_arn, options))
    code, data = as_expression(_code_channel()), as_expression(_data_channel())
    channels = (
        f"[$parameters.source_uri != '{BUILT_IN_CODE}' ? {code}, $parameters.input_mode != 'stream' ? {data}]"
    )
    return jsonata(
        f"($channels_ := {channels};"
        f" $merge([{always}, $count($channels_) > 0 ? {{'InputDataConfig': $channels_}} : {{}}]))"
    )


def _code_channel() -> dict[str, Any]:
    """The user's own code, which SageMaker copies to /opt/ml/input/data/code before the container starts."""
    archive = SOURCE_ARCHIVE.replace(".", r"\.")
    return {
        "ChannelName": layout.CODE_CHANNEL,
        "DataSource": _objects_of("$parameters.source_uri", is_whole=f"/({archive}|\\/)$/"),
    }


def _data_channel() -> dict[str, Any]:
    """The data set in /opt/ml/input/data/data, copied there or fetched as it is read (input_mode)."""
    return {
        "ChannelName": layout.DATA_CHANNEL,
        "InputMode": jsonata("$parameters.input_mode = 'file' ? 'File' : 'FastFile'"),
        # A last part with a dot in it is a file.
        "DataSource": _objects_of("$parameters.dataset_uri", is_whole=r"/(\/|\.[^\/]*)$/"),
    }


def _objects_of(given: str, *, is_whole: str) -> dict[str, Any]:
    """What lies at a URI, or at a key of the run's bucket; `is_whole` matches what needs no slash after it.

    S3 knows no folders: `mine` would bring the files of `mine-too` along, `mine/` doesn't.
    """
    address = f"($contains({given}, /^[a-z0-9]+:/) ? {given} : 's3://' & $bucket & '/' & {given})"
    return {
        "S3DataSource": {
            "S3DataType": "S3Prefix",
            "S3Uri": jsonata(f"{address} & ($contains({given}, {is_whole}) ? '' : '/')"),
            "S3DataDistributionType": "FullyReplicated",
        }
    }


def _request(image_uri: str, role_arn: str, options: JobOptions) -> dict[str, Any]:
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
        "Environment": jsonata(_environment(options)),
        # For people who look at the job in the console; a replica reads run.json.
        "HyperParameters": jsonata(
            "$merge($each($parameters, function($value, $name) {"
            " {$name: $substring($string($value), 0, 256)} }))"
        ),
        # One instance: several would join into one job with a network of its own.
        "ResourceConfig": jsonata(
            "$merge([{'InstanceCount': 1, 'InstanceType': $instance_type,"
            f" 'VolumeSizeInGB': $parameters.volume_gb}}, {_volume_key(options)}"
            " $parameters.training_plan_arn != ''"
            " ? {'TrainingPlanArn': $parameters.training_plan_arn} : {},"
            " $parameters.keep_alive_period_s > 0"
            " ? {'KeepAlivePeriodInSeconds': $parameters.keep_alive_period_s} : {}])"
        ),
        "StoppingCondition": jsonata(
            "$merge([{'MaxRuntimeInSeconds': $parameters.max_runtime_s},"
            f" $contains($instance_type, {ACCELERATED})"
            " ? {'MaxPendingTimeInSeconds': $parameters.max_pending_s} : {},"
            " $parameters.use_spot ? {'MaxWaitTimeInSeconds': $parameters.max_wait_s} : {}])"
        ),
        "EnableManagedSpotTraining": jsonata("$parameters.use_spot"),
        # One place a rank, spot or not: SageMaker restores it for whoever takes the rank up next.
        "CheckpointConfig": {
            "S3Uri": jsonata(f"'s3://' & $bucket & '/' & {key(ANY_RUN.checkpoint_prefix(ANY_RANK))}"),
            "LocalPath": f"{layout.SAGEMAKER_BASE_DEFAULT}/{layout.CHECKPOINT_FOLDER}",
        },
        # Isolated, a container could not reach S3, and every peer would wait for it in vain.
        "EnableNetworkIsolation": False,
        "OutputDataConfig": {
            "S3OutputPath": jsonata(f"'s3://' & $bucket & '/{layout.OUTPUT_PREFIX}/' & $run_id & '/jobs'"),
            # Weights hardly get smaller, and packing them takes minutes that are billed.
            "CompressionType": "NONE",
            **options.output_key(),
        },
        # What a trainer writes to /opt/ml/output/tensorboard, uploaded while it runs.
        "TensorBoardOutputConfig": {
            "S3OutputPath": jsonata(f"'s3://' & $bucket & '/' & {key(ANY_RUN.tensorboard_prefix)}")
        },
        **options.vpc_config(),
        "Tags": jsonata(
            f"[{{'Key': 'application', 'Value': '{options.application}'}},"
            " {'Key': 'diloco:run', 'Value': $run_id}, {'Key': 'diloco:rank', 'Value': $string($rank)},"
            " $each($parameters.tags, function($value, $name) { {'Key': $name, 'Value': $value} })]"
        ),
    }


def _environment(options: JobOptions) -> str:
    """The run's own variables come last: a user's can't replace them."""
    ours = {
        layout.RUN_URI_ENV: f"'s3://' & $bucket & '/' & {run_file()}",
        layout.RANK_ENV: "$string($rank)",
        "WORLD_SIZE": "$string($parameters.n_replicas)",
        **{name: f"'{value}'" for name, value in options.environment().items()},
    }
    members = ", ".join(f"'{name}': {value}" for name, value in ours.items())
    return f"$merge([$parameters.environment, {{{members}}}])"


def _volume_key(options: JobOptions) -> str:
    """SageMaker refuses a key for the disks of an instance that brings its own, encrypted ones."""
    if options.key_arn is None:
        return ""
    return f"$contains($instance_type, {HAS_LOCAL_DISKS}) ? {{}} : {{'VolumeKmsKeyId': '{options.key_arn}'}},"
