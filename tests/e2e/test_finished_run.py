"""A run that succeeds: what its user is told, and what it leaves."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.support.deployed import ROOT, Deployed
from trainer.layout import METRICS, RunLayout, job_hash
from trainer.run_spec import parse


def test_the_client_follows_to_the_end_and_says_where_things_are(deployed: Deployed, toy_run: Any) -> None:
    assert toy_run.exit_code == 0, toy_run.printed
    lines = toy_run.printed.splitlines()
    assert lines[:3] == [
        "run toy-1: 2 replicas, 2 rounds",
        f"execution: {toy_run.arn}",
        f"endpoint: {deployed.settings.endpoint_url}",
    ]
    assert lines[-3:] == [
        "SUCCEEDED: all replicas hold the same weights",
        f"model: s3://{deployed.bucket}/diloco-out/toy-1/model",
        f"report: {toy_run.folder}/report.json",
    ]
    for rank in (0, 1):
        assert f"rank {rank}: Completed, round 2/2, inner step 4, loss -, - tokens/s" in lines


def test_the_report_names_the_execution_and_each_replica_s_job(deployed: Deployed, toy_run: Any) -> None:
    weights = toy_run.report["replicas"][0]["weights_hash"]
    assert re.fullmatch("[0-9a-f]{64}", weights)
    assert toy_run.arn == deployed.machine.replace(":stateMachine:", ":execution:") + ":toy-1"
    assert toy_run.report == {
        "run_id": "toy-1",
        "status": "SUCCEEDED",
        "error": None,
        "cause": None,
        "first_loss": None,
        "last_loss": 1.25,
        "bigram_loss": None,
        "model_uri": f"s3://{deployed.bucket}/diloco-out/toy-1/model",
        "execution_arn": toy_run.arn,
        "replicas": [
            {
                "rank": rank,
                "job_name": f"toy-1-{job_hash(toy_run.arn)}-r{rank}-a0",
                "status": "Completed",
                "attempts": 1,
                "rounds": 2,
                "weights_hash": weights,
            }
            for rank in (0, 1)
        ],
    }


def test_the_execution_s_output_is_the_summary(deployed: Deployed, toy_run: Any) -> None:
    ended = deployed.ended(toy_run.arn)
    assert ended["status"] == "SUCCEEDED"
    report = toy_run.report
    output = json.loads(ended["output"])
    billable = [row.pop("billable_s") for row in output["replicas"]]
    assert [row.pop("instance_type") for row in output["replicas"]] == ["ml.m5.xlarge"] * 2
    assert output == {
        "billable_s": sum(billable),
        "run_id": "toy-1",
        "model_uri": report["model_uri"],
        "weights_hash": report["replicas"][0]["weights_hash"],
        "rounds": 2,
        "last_loss": 1.25,
        "replicas": report["replicas"],
    }


def test_run_json_holds_every_parameter_resolved(deployed: Deployed, toy_run: Any) -> None:
    """Written by the state machine's JSONata, and yet the very object that pydantic would have written."""
    document = json.loads(deployed.read(RunLayout("toy-1").run_file))
    assert document == {"run_id": "toy-1", "parameters": parse(toy_run.parameters).model_dump()}


def test_the_model_lies_unpacked_and_where_sagemaker_puts_it(
    deployed: Deployed, toy_run: Any, tmp_path: Path
) -> None:
    assert deployed.keys("diloco-out/toy-1/model") == ["diloco-out/toy-1/model/weights.txt"]
    for row in toy_run.report["replicas"]:
        folder = f"diloco-out/toy-1/jobs/{row['job_name']}/output/model/"
        job = deployed.jobs(toy_run.arn)[f"r{row['rank']}-a0"]
        assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://{deployed.bucket}/{folder}"
        assert deployed.keys(folder) == [f"{folder}weights.txt"]
    done = deployed.runs("download-model", "toy-1", "--to", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"1 files in {tmp_path}\n", "")
    assert (tmp_path / "weights.txt").read_text() == "world size 2"


def test_the_smoke_run_has_the_weights_of_the_same_run_without_aws(
    deployed: Deployed, smoke_run: Any, tmp_path: Path
) -> None:
    assert smoke_run.exit_code == 0, smoke_run.printed
    parameters, store = ROOT / "runs/examples/smoke.json", (tmp_path / "store").as_uri()
    local = (sys.executable, "-m", "trainer.local", parameters, "--run-id", "smoke")
    done = deployed.program(*local, "--store", store, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "smoke/report.json").read_text())
    for name in ("first_loss", "last_loss", "bigram_loss"):
        assert smoke_run.report[name] == report[name] > 0
    hashes = {row["weights_hash"] for row in smoke_run.report["replicas"] + report["replicas"]}
    assert len(hashes) == 1


def test_the_smoke_run_leaves_a_model_and_a_plot(deployed: Deployed, smoke_run: Any) -> None:
    left = {key.rsplit("/", 1)[1] for key in deployed.keys("diloco-out/smoke-1/model")}
    assert left >= {"config.json", "model.safetensors", "tokenizer_config.json"}
    assert (smoke_run.folder / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_every_metric_of_a_job_is_found_in_its_log(deployed: Deployed, smoke_run: Any) -> None:
    """What SageMaker plots is what its regular expressions find in the lines of CloudWatch."""
    for ending, job in deployed.jobs(smoke_run.arn).items():
        rank = int(ending[1])
        log = deployed.job_log(job["TrainingJobName"])
        metrics = deployed.read(RunLayout("smoke-1").metrics(rank)).splitlines()
        rounds = [json.loads(line) for line in metrics]
        assert [row["round"] for row in rounds] == [0, 1]
        definitions = job["AlgorithmSpecification"]["MetricDefinitions"]
        assert [definition["Name"] for definition in definitions] == list(METRICS)
        definitions = [definition for definition in definitions if definition["Name"] != "mfu"]  # not of CPUs
        final = {metric["MetricName"]: metric["Value"] for metric in job["FinalMetricDataList"]}
        for definition in definitions:
            name = definition["Name"]
            found = [match[1] for line in log if (match := re.search(definition["Regex"], line))]
            if name == "eval_loss" and rank > 0:  # of all shares together: rank 0 says it
                assert found == []
                continue
            reported = [f"{row[name]:.6g}" for row in rounds]
            assert found == reported, name
            assert final[name] == float(found[-1])
