"""How a training job lives and ends, as DescribeTrainingJob, S3 and CloudWatch Logs show it."""

import io
import json
import tarfile
from typing import Any

import pytest
from botocore.exceptions import ClientError


def test_a_job_that_exits_0_is_completed_and_its_model_is_in_s3(account: Any, job_role: str) -> None:
    code = "open(base + '/model/weights', 'w').write('w')"
    job = account.run_job(account.python_job(job_role, code))

    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Completed", "Completed"), job
    key = f"out/{job['TrainingJobName']}/output/model.tar.gz"
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://{account.bucket}/{key}"
    archive = account.client("s3").get_object(Bucket=account.bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        assert opened.getnames() == ["weights"]
    assert [t["Status"] for t in job["SecondaryStatusTransitions"]] == [
        "Starting",
        "Downloading",
        "Training",
        "Uploading",
        "Completed",
    ]
    assert job["CreationTime"] <= job["TrainingStartTime"] <= job["TrainingEndTime"]
    assert job["BillableTimeInSeconds"] >= 1


def test_output_without_compression_is_uploaded_file_by_file(account: Any, job_role: str) -> None:
    code = (
        "import pathlib; base = pathlib.Path(base);"
        "(base / 'model/a').mkdir(); (base / 'model/a/b').write_text('x');"
        "(base / 'output/data/c').write_text('y')"
    )
    output = {"S3OutputPath": f"s3://{account.bucket}/plain/", "CompressionType": "NONE"}
    job = account.run_job(account.python_job(job_role, code, OutputDataConfig=output))

    prefix = f"plain/{job['TrainingJobName']}/output/"
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://{account.bucket}/{prefix}model/"
    listed = account.client("s3").list_objects_v2(Bucket=account.bucket, Prefix=prefix)["Contents"]
    assert [item["Key"].removeprefix(prefix) for item in listed] == ["data/c", "model/a/b"]


def test_tensorboard_events_are_uploaded_below_the_jobs_name(account: Any, job_role: str) -> None:
    code = (
        "import pathlib; folder = pathlib.Path(base) / 'output/tensorboard/rank_0001';"
        "folder.mkdir(parents=True); (folder / 'events.out').write_text('x')"
    )
    output = {"S3OutputPath": f"s3://{account.bucket}/out/tb"}
    job = account.run_job(account.python_job(job_role, code, TensorBoardOutputConfig=output))

    prefix = f"out/tb/{job['TrainingJobName']}/"
    listed = account.client("s3").list_objects_v2(Bucket=account.bucket, Prefix=prefix)["Contents"]
    assert [i["Key"].removeprefix(prefix) for i in listed] == ["tensorboard-output/rank_0001/events.out"]


def test_a_job_finds_its_folders_configuration_and_channels(account: Any, job_role: str) -> None:
    account.client("s3").put_object(Bucket=account.bucket, Key="text/folder/a.txt", Body=b"hello")
    code = (
        "import json, pathlib; base = pathlib.Path(base);"
        "read = lambda name: json.loads((base / 'input/config' / name).read_text());"
        "found = dict(hyperparameters=read('hyperparameters.json'), resources=read('resourceconfig.json'),"
        " inputs=read('inputdataconfig.json'), text=(base / 'input/data/train/folder/a.txt').read_text(),"
        " checkpoints=(base / 'ckpt').is_dir(), environment=dict(os.environ)); print(json.dumps(found))"
    )
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{account.bucket}/text/"}
    request = account.python_job(
        job_role,
        code,
        HyperParameters={"n_replicas": "2"},
        Environment={"RANK": "1"},
        InputDataConfig=[{"ChannelName": "train", "DataSource": {"S3DataSource": source}}],
        CheckpointConfig={"S3Uri": f"s3://{account.bucket}/ckpt", "LocalPath": "/opt/ml/ckpt"},
    )
    job = account.run_job(request)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")

    (line,) = account.job_log(job["TrainingJobName"])
    found = json.loads(line)
    assert found["hyperparameters"] == {"n_replicas": "2"}
    assert found["resources"]["hosts"] == ["algo-1"]
    assert found["resources"]["current_instance_type"] == "ml.m5.xlarge"
    assert found["inputs"]["train"]["TrainingInputMode"] == "File"
    assert (found["text"], found["checkpoints"]) == ("hello", True)
    assert (
        found["environment"].items()
        >= {
            "RANK": "1",
            "TRAINING_JOB_NAME": job["TrainingJobName"],
            "TRAINING_JOB_ARN": job["TrainingJobArn"],
            "OMP_NUM_THREADS": "1",
            "AWS_REGION": "us-east-1",
        }.items()
    )
    assert found["environment"]["AWS_ACCESS_KEY_ID"].startswith("ASIA")
    assert "VIRTUAL_ENV" not in found["environment"], "this machine's variables stay out"


def test_a_channel_without_objects_fails_the_job(account: Any, job_role: str) -> None:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{account.bucket}/nothing-here/"}
    channel = {"ChannelName": "train", "DataSource": {"S3DataSource": source}}
    job = account.run_job(account.job_request(job_role, "true", InputDataConfig=[channel]))
    assert job["TrainingJobStatus"] == "Failed"
    assert "No S3 objects found under S3 URL" in job["FailureReason"]


def test_the_failure_file_is_the_reason_of_a_failed_job(account: Any, job_role: str) -> None:
    code = (
        "import sys; open(base + '/output/failure', 'w').write('rank 0: no data. ' + 'x' * 2000); sys.exit(3)"
    )
    job = account.run_job(account.python_job(job_role, code))
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Failed", "Failed")
    assert job["FailureReason"].startswith("AlgorithmError: rank 0: no data. xxx")
    assert job["FailureReason"].endswith("xxx, exit code: 3")
    assert len(job["FailureReason"]) == 1024


def test_a_killed_job_names_the_signal(account: Any, job_role: str) -> None:
    job = account.run_job(account.job_request(job_role, "sh", "-c", "kill -9 $$"))
    assert job["FailureReason"] == "AlgorithmError: , exit code: 137 (SIGKILL)"


def test_a_command_that_is_not_there_fails_with_127(account: Any, job_role: str) -> None:
    job = account.run_job(account.job_request(job_role, "no-such-command"))
    assert job["FailureReason"] == "AlgorithmError: , exit code: 127"


def test_max_runtime_ends_a_job_as_stopped(account: Any, job_role: str) -> None:
    request = account.job_request(job_role, "sleep", "600", StoppingCondition={"MaxRuntimeInSeconds": 1})
    job = account.run_job(request)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert "FailureReason" not in job


def test_a_stopped_job_gets_sigterm_and_keeps_what_it_saved(account: Any, job_role: str) -> None:
    code = (
        "import signal, sys, threading\n"
        "def save(*_): open(base + '/model/saved', 'w').write('x'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save); print('ready'); threading.Event().wait()"
    )
    name = account.start_job(account.python_job(job_role, code))
    account.wait_until(lambda: account.job_log(name) == ["ready"], "the log is there while the job runs")
    account.client("sagemaker").stop_training_job(TrainingJobName=name)
    job = account.ended_job(name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "Stopped")
    key = f"out/{name}/output/model.tar.gz"
    assert account.client("s3").head_object(Bucket=account.bucket, Key=key)["ContentLength"] > 0


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace_with_its_children(
    account: Any, job_role: str
) -> None:
    name = account.start_job(
        account.job_request(job_role, "sh", "-c", "trap '' TERM; sleep 600 & echo child $!; wait; sleep 600")
    )
    (line,) = account.wait_until(lambda: account.job_log(name), "the job says what it started")
    account.client("sagemaker").stop_training_job(TrainingJobName=name)
    assert account.ended_job(name)["TrainingJobStatus"] == "Stopped"
    assert not account.is_running(int(line.split()[1]))


def test_stopping_an_ended_job_is_refused(account: Any, job_role: str) -> None:
    job = account.run_job(account.job_request(job_role, "true"))
    with pytest.raises(ClientError, match="the training job is in status Completed"):
        account.client("sagemaker").stop_training_job(TrainingJobName=job["TrainingJobName"])


def test_a_name_is_used_once_for_ever(account: Any, job_role: str) -> None:
    request = account.job_request(job_role, "false")
    account.run_job(request)
    with pytest.raises(account.client("sagemaker").exceptions.ResourceInUse):
        account.client("sagemaker").create_training_job(**request)


def test_the_last_match_of_a_metric_definition_is_its_final_value(account: Any, job_role: str) -> None:
    request = account.python_job(job_role, "print('loss=2.5'); print('loss=1.25')")
    request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    (metric,) = account.run_job(request)["FinalMetricDataList"]
    assert (metric["MetricName"], metric["Value"]) == ("loss", 1.25)
