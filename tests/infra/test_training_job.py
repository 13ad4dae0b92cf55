"""The request that starts a replica, held against SageMaker's own model of it."""

import re
from collections.abc import Callable
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from infra.job_options import JobOptions
from infra.jsonata import jsonata
from infra.training_job_state import JOB_NAME, JOB_PREFIX, train_replica
from trainer import layout
from trainer.run_spec import RunSpec

Evaluate = Callable[..., Any]
States = dict[str, dict[str, Any]]

# "TrainingJobName" of CreateTrainingJob, API reference.
JOB_NAME_PATTERN = r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"


PLAN = f"arn:aws:sagemaker:xx-nowhere-1:{'0' * 12}:training-plan/{'p' * 63}"


@pytest.fixture(scope="module")
def model() -> Any:
    service = botocore.session.get_session().get_service_model("sagemaker")
    return service.operation_model("CreateTrainingJob").input_shape


def _request(states: States, evaluate: Evaluate, **given: Any) -> dict[str, Any]:
    spec = RunSpec.model_validate(
        {name: given.pop(name) for name in list(given) if name in RunSpec.model_fields}
    )
    run = {"bucket": "bucket", "run_id": "run", "rank": 1, "job_name": "run-0123456789-r1-a0", **given}
    types = spec.instance_type.split(",")
    run["instance_type"] = types[run["rank"] % len(types)]
    found = evaluate(states["TrainReplica"]["Arguments"], parameters=spec.model_dump(), **run)
    assert isinstance(found, dict)
    return found


def _check(value: Any, shape: Any, path: str = "") -> None:
    """The lengths and bounds that botocore itself leaves to the service."""
    if shape.type_name == "structure":
        for name, member in value.items():
            _check(member, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list":
        _size(len(value), shape, path)
        for member in value:
            _check(member, shape.member, f"{path}[]")
    elif shape.type_name == "map":
        _size(len(value), shape, path)
        for name, member in value.items():
            _check(name, shape.key, f"{path}.{name}")
            _check(member, shape.value, f"{path}.{name}")
    elif shape.type_name == "string":
        _size(len(value), shape, path)
        if pattern := shape.metadata.get("pattern"):
            # Python's patterns don't know the Unicode classes of Java's.
            plain = pattern.replace(r"\p{L}", "a-zA-Z").replace(r"\p{Z}", " ").replace(r"\p{N}", "0-9")
            assert re.fullmatch(plain, value), f"{path}: {value}"
        assert not shape.enum or value in shape.enum, f"{path}: {value}"
    elif shape.type_name in ("integer", "long"):
        _size(value, shape, path)


def _size(size: int, shape: Any, path: str) -> None:
    assert size >= shape.metadata.get("min", size), path
    assert size <= shape.metadata.get("max", size), path


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"use_spot": True},
        {"keep_alive_period_s": 3600},
        {"instance_type": "ml.p5.48xlarge", "max_pending_s": 28 * 86_400, "training_plan_arn": PLAN},
        {
            "tags": {f"{number:03d}{'t' * 125}": "v" * 256 for number in range(40)},
            "environment": {f"E{number:03d}{'E' * 252}": "v" * 512 for number in range(80)},
            "instance_type": ",".join(["ml.m5.xlarge"] * 40),
        },
        {
            "n_replicas": 40,
            "max_relaunches": 10,
            "dataset_uri": "s3://" + "x" * 1019,
            "model_name": "m" * 200,
        },
        {
            "bucket": "b" * 63,
            "run_id": "r" * 80,
            "rank": 39,
            "job_name": "x" * 63,
            "trainer_module": "m" * 200,
            "trainer_fn": "f" * 100,
            "source_uri": "k" * 900,
        },
        {"source_uri": "s3://" + "b" * 63 + "/" + "k" * 831},
        {"source_uri": "k" * 900, "dataset_uri": "s3://bucket/" + "k" * 1011, "input_mode": "fastfile"},
    ],
)
def test_the_longest_legal_run_makes_a_legal_request(
    given: dict[str, Any], states: States, evaluate: Evaluate, model: Any
) -> None:
    request = _request(states, evaluate, **given)
    request["RoleArn"] = f"arn:aws:iam::{'0' * 12}:role/a-role"
    report = ParamValidator().validate(request, model)
    assert not report.has_errors(), report.generate_report()
    _check(request, model)
    # Tighter than the model: an argument's limit is in the API reference only, and a longer
    # hyperparameter was refused before the limit rose.
    for text in (
        *request["AlgorithmSpecification"]["ContainerArguments"],
        *request["HyperParameters"].values(),
    ):
        assert len(text) <= 256


def test_a_replica_is_told_its_rank_and_its_run_twice(states: States, evaluate: Evaluate) -> None:
    request = _request(states, evaluate)
    uri = "s3://bucket/diloco-rdv/run/run.json"
    algorithm = request["AlgorithmSpecification"]
    assert algorithm["ContainerEntrypoint"] == ["python", "-m", "trainer.replica_entrypoint"]
    assert algorithm["ContainerArguments"] == ["--run", uri, "--rank", "1"]
    assert request["Environment"] == {"RUN_URI": uri, "REPLICA_RANK": "1", "WORLD_SIZE": "2"}
    assert {m["Name"]: m["Regex"] for m in algorithm["MetricDefinitions"]} == {
        name: layout.metric_pattern(name) for name in layout.METRICS
    }


def test_a_replica_is_one_instance_that_reaches_s3(states: States, evaluate: Evaluate) -> None:
    request = _request(states, evaluate, instance_type="ml.g5.xlarge", volume_gb=100, max_runtime_s=600)
    assert request["ResourceConfig"] == {
        "InstanceCount": 1,
        "InstanceType": "ml.g5.xlarge",
        "VolumeSizeInGB": 100,
    }
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 600, "MaxPendingTimeInSeconds": 7200}
    assert request["EnableNetworkIsolation"] is False
    assert request["EnableManagedSpotTraining"] is False
    output = {"S3OutputPath": "s3://bucket/diloco-out/run/jobs", "CompressionType": "NONE"}
    assert request["OutputDataConfig"] == output
    assert request["TensorBoardOutputConfig"] == {"S3OutputPath": "s3://bucket/diloco-out/run/tensorboard"}
    assert not request.keys() & {"VpcConfig", "InputDataConfig"}


def test_spot_and_warm_pools_are_asked_for_only_where_wanted(states: States, evaluate: Evaluate) -> None:
    spot = _request(states, evaluate, use_spot=True, max_wait_s=100_000)
    assert spot["EnableManagedSpotTraining"] is True
    assert spot["StoppingCondition"] == {"MaxRuntimeInSeconds": 86_400, "MaxWaitTimeInSeconds": 100_000}
    warm = _request(states, evaluate, keep_alive_period_s=60)
    assert warm["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 60


def test_a_run_without_code_of_its_own_has_no_channel(states: States, evaluate: Evaluate) -> None:
    assert "InputDataConfig" not in _request(states, evaluate)


@pytest.mark.parametrize(
    ("given", "mounted"),
    [
        # A folder's prefix ends in a slash, or S3 would bring `mine-too` with `mine`.
        ("diloco-in/mine", "s3://bucket/diloco-in/mine/"),
        ("diloco-in/mine/", "s3://bucket/diloco-in/mine/"),
        ("diloco-in/mine.tar.gz", "s3://bucket/diloco-in/mine.tar.gz"),
        ("s3://other/mine", "s3://other/mine/"),
        ("s3://other/mine.tar.gz", "s3://other/mine.tar.gz"),
    ],
)
def test_the_users_own_code_is_the_channel_code(
    given: str, mounted: str, states: States, evaluate: Evaluate
) -> None:
    (channel,) = _request(states, evaluate, source_uri=given)["InputDataConfig"]
    assert channel == {
        "ChannelName": "code",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": mounted,
                "S3DataDistributionType": "FullyReplicated",
            }
        },
    }


@pytest.mark.parametrize(
    ("given", "mounted"),
    [
        ("diloco-in/text", "s3://bucket/diloco-in/text/"),
        ("diloco-in/text/", "s3://bucket/diloco-in/text/"),
        ("diloco-in/text.jsonl", "s3://bucket/diloco-in/text.jsonl"),
        ("s3://other/v1.2/text", "s3://other/v1.2/text/"),
        ("s3://other/v1.2/", "s3://other/v1.2/"),
    ],
)
@pytest.mark.parametrize(("mode", "asked"), [("file", "File"), ("fastfile", "FastFile")])
def test_the_data_set_is_the_channel_data_where_a_mode_asks_for_it(
    mode: str, asked: str, given: str, mounted: str, states: States, evaluate: Evaluate
) -> None:
    (channel,) = _request(states, evaluate, dataset_uri=given, input_mode=mode)["InputDataConfig"]
    assert [channel["ChannelName"], channel["InputMode"]] == ["data", asked]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == mounted
    assert "InputDataConfig" not in _request(states, evaluate, dataset_uri=given)


def test_code_and_data_come_in_channels_of_their_own(states: States, evaluate: Evaluate) -> None:
    both = {"source_uri": "diloco-in/mine", "dataset_uri": "diloco-in/text", "input_mode": "file"}
    channels = _request(states, evaluate, **both)["InputDataConfig"]
    assert [channel["ChannelName"] for channel in channels] == ["code", "data"]


@pytest.mark.parametrize("use_spot", [False, True])
def test_every_job_of_a_rank_has_the_same_place_for_checkpoints(
    use_spot: bool, states: States, evaluate: Evaluate
) -> None:
    for attempt in (0, 1):
        request = _request(states, evaluate, use_spot=use_spot, rank=12, job_name=f"run-r12-a{attempt}")
        assert request["CheckpointConfig"] == {
            "S3Uri": "s3://bucket/diloco-ckpt/run/rank_0012",
            "LocalPath": "/opt/ml/checkpoints",
        }


def test_only_accelerated_instances_have_a_bound_on_waiting(states: States, evaluate: Evaluate) -> None:
    accelerated = ["p4d.24xlarge", "trn1.2xlarge", "gr6.4xlarge", "g5.xlarge"]
    for kind in [*accelerated, "m5.xlarge", "c7i-flex.large", "r5d.large"]:
        stopping = _request(states, evaluate, instance_type=f"ml.{kind}")["StoppingCondition"]
        assert ("MaxPendingTimeInSeconds" in stopping) is (kind in accelerated), kind


def test_tags_and_environment_come_beside_the_runs_own(states: States, evaluate: Evaluate) -> None:
    given = {"tags": {"owner": "me"}, "environment": {"HF_HOME": "/tmp/hub"}}
    request = _request(states, evaluate, **given)
    assert request["Tags"] == [
        {"Key": "application", "Value": "diloco"},
        {"Key": "diloco:run", "Value": "run"},
        {"Key": "diloco:rank", "Value": "1"},
        {"Key": "owner", "Value": "me"},
    ]
    assert request["Environment"] == {
        "HF_HOME": "/tmp/hub",
        "RUN_URI": "s3://bucket/diloco-rdv/run/run.json",
        "REPLICA_RANK": "1",
        "WORLD_SIZE": "2",
    }
    # Validation refuses such a name already; were it ever to pass, the run's own value would stand.
    spec = RunSpec.model_validate({}).model_dump() | {"environment": {"REPLICA_RANK": "7"}}
    run = {"bucket": "b", "run_id": "run", "rank": 1, "job_name": "j", "instance_type": "ml.m5.large"}
    found = evaluate(states["TrainReplica"]["Arguments"], parameters=spec, **run)
    assert found["Environment"]["REPLICA_RANK"] == "1"
    plain = _request(states, evaluate)
    assert [tag["Key"] for tag in plain["Tags"]] == ["application", "diloco:run", "diloco:rank"]


@pytest.mark.parametrize(
    ("instance_type", "has_disks"),
    [("ml.g5.xlarge", True), ("ml.p4de.24xlarge", True), ("ml.m5d.large", True), ("ml.p3dn.24xlarge", True),
     ("ml.trn1.32xlarge", True), ("ml.m5.xlarge", False), ("ml.p3.2xlarge", False), ("ml.c5n.large", False),
     ("ml.m7i-flex.large", False)],
)  # fmt: skip
def test_a_volume_has_the_key_unless_the_instance_brings_its_disks(
    instance_type: str, has_disks: bool, evaluate: Evaluate
) -> None:
    """SageMaker refuses VolumeKmsKeyId on types with NVMe disks (ResourceConfig, API reference)."""
    options = JobOptions(("subnet-1",), ("sg-1",), "arn:of:key", "arn:of:secret")
    state = train_replica(image_uri="image", role_arn="role", options=options)
    request = _request({"TrainReplica": state}, evaluate, instance_type=instance_type)
    assert ("VolumeKmsKeyId" not in request["ResourceConfig"]) is has_disks
    assert request["OutputDataConfig"]["KmsKeyId"] == "arn:of:key"
    assert request["VpcConfig"] == {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    assert request["Environment"][layout.SECRET_ENV] == "arn:of:secret"


def test_the_console_shows_every_run_parameter(states: States, evaluate: Evaluate) -> None:
    shown = _request(states, evaluate, lr=0.01)["HyperParameters"]
    assert shown.keys() == RunSpec.model_fields.keys()
    assert [shown["lr"], shown["use_spot"], shown["n_replicas"]] == ["0.01", "false", "2"]


@pytest.mark.parametrize("run_id", ["a", "x" * 80, "a.b_c-d", "a" + "." * 79, "2024-01-01_run.1"])
def test_job_names_are_legal_and_differ_by_run_rank_and_attempt(run_id: str, evaluate: Evaluate) -> None:
    names = set()
    for execution in ("one", "two"):
        prefix = evaluate(jsonata(JOB_PREFIX), run_id=run_id, context={"Execution": {"Id": execution}})
        for rank in range(40):
            for attempt in range(11):
                name = evaluate(jsonata(JOB_NAME), job_prefix=prefix, rank=rank, attempt=attempt)
                assert re.fullmatch(JOB_NAME_PATTERN, name)
                assert name.endswith(f"-r{rank}-a{attempt}")
                names.add(name)
    assert len(names) == 2 * 40 * 11
