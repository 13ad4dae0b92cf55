"""A training job's /opt/ml, as a private folder on this machine.

The layout is SageMaker's ("How Amazon SageMaker AI Provides Training Information" and "... Processes
Training Output", developer guide); SAGEMAKER_BASE_DIR tells the job where it is, the convention of
SageMaker's own training toolkit. Copies between the folder and S3 use the execution role's credentials, so
a role that may not read its input or write its output fails here as it does there.
"""

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError

from local_aws.iam import Session
from local_aws.settings import REGION

CONTAINER_BASE = "/opt/ml"
DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"

# Describe's FailureReason holds 1,024 characters, and the file's first 1,024 are what SageMaker takes.
FAILURE_CHARACTERS = 1024


class JobFailed(Exception):
    """The job ends as Failed; the message is its FailureReason."""


class JobFolder:
    """The folders of one job below `base`."""

    def __init__(self, base: Path, request: dict[str, Any]) -> None:
        self.base = base
        self._request = request

    def lay_out(self) -> None:
        """Make the folders and the three configuration files."""
        for name in ("input/config", "input/data", "model", "output/data", "code"):
            (self.base / name).mkdir(parents=True)
        if "CheckpointConfig" in self._request:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        resources = self._request["ResourceConfig"]
        self._write_config("hyperparameters", self._request.get("HyperParameters", {}))
        self._write_config(
            "resourceconfig",
            {
                "current_host": "algo-1",
                "current_instance_type": resources["InstanceType"],
                "current_group_name": "homogeneousCluster",
                "hosts": ["algo-1"],
                "instance_groups": [
                    {
                        "instance_group_name": "homogeneousCluster",
                        "instance_type": resources["InstanceType"],
                        "hosts": ["algo-1"],
                    }
                ],
                "network_interface_name": "eth0",
            },
        )
        self._write_config(
            "inputdataconfig", {c["ChannelName"]: _channel_config(c) for c in self._channels()}
        )

    def remove(self) -> None:
        """As an instance goes, with its volume."""
        shutil.rmtree(self.base)

    @property
    def checkpoints(self) -> Path:
        """The folder that CheckpointConfig is about."""
        return self.inside(self._request["CheckpointConfig"].get("LocalPath", DEFAULT_CHECKPOINT_PATH))

    def inside(self, container_path: str) -> Path:
        """Where a path below /opt/ml lies on this machine."""
        return self.base / Path(container_path).relative_to(CONTAINER_BASE)

    def download_channels(self, session: Session) -> None:
        """Copy each channel's objects into input/data. Raises JobFailed."""
        for channel in self._channels():
            source = channel["DataSource"]["S3DataSource"]["S3Uri"]
            try:
                found = _download(
                    session.client("s3"), source, self.base / "input/data" / channel["ChannelName"]
                )
            except ClientError as error:
                raise JobFailed(f"ClientError: Data download failed:{source}: {error}") from error
            if not found:
                raise JobFailed(
                    f'ClientError: Data download failed:No S3 objects found under S3 URL "{source}" given in '
                    f"input data source. Please ensure that the bucket exists in the selected region "
                    f'({REGION}) and that objects exist under that S3 prefix. (role: "{session.role_arn}")'
                )

    def upload_results(self, session: Session, job_name: str) -> str:
        """Put model/ and output/data/ below the request's S3OutputPath; return where the model is.

        A folder without files uploads nothing. Raises JobFailed.
        """
        output = self._request["OutputDataConfig"]
        target = f"{output['S3OutputPath'].rstrip('/')}/{job_name}/output"
        compressed = output.get("CompressionType", "GZIP") == "GZIP"
        try:
            for folder, name in (("model", "model"), ("output/data", "output")):
                _upload(session.client("s3"), self.base / folder, target, name, compressed=compressed)
            if tensorboard := self._request.get("TensorBoardOutputConfig"):
                local = self.inside(tensorboard.get("LocalPath", f"{CONTAINER_BASE}/output/tensorboard"))
                to = f"{tensorboard['S3OutputPath'].rstrip('/')}/{job_name}"
                _upload(session.client("s3"), local, to, "tensorboard-output", compressed=False)
        except (ClientError, S3UploadFailedError) as error:
            raise JobFailed(f"ClientError: Artifact upload failed:{target}: {error}") from error
        return f"{target}/model.tar.gz" if compressed else f"{target}/model/"

    def failure_text(self) -> str:
        """What the job wrote to output/failure, at most FAILURE_CHARACTERS of it."""
        path = self.base / "output/failure"
        return path.read_text(errors="replace")[:FAILURE_CHARACTERS].strip() if path.is_file() else ""

    def _channels(self) -> list[dict[str, Any]]:
        channels: list[dict[str, Any]] = self._request.get("InputDataConfig", [])
        return channels

    def _write_config(self, name: str, content: dict[str, Any]) -> None:
        (self.base / f"input/config/{name}.json").write_text(json.dumps(content, indent=2))


def _channel_config(channel: dict[str, Any]) -> dict[str, Any]:
    config = {
        "TrainingInputMode": channel.get("InputMode", "File"),
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": channel.get("RecordWrapperType", "None"),
    }
    if "ContentType" in channel:
        config["ContentType"] = channel["ContentType"]
    return config


def _split_uri(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def _download(s3: Any, uri: str, folder: Path) -> int:
    """Objects whose key begins with the URI's, named by what follows its last folder; how many there were."""
    bucket, prefix = _split_uri(uri)
    parent = prefix[: prefix.rfind("/") + 1]
    folder.mkdir(parents=True)
    count = 0
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            key: str = item["Key"]
            # `data/set` names the folder data/set/ as well as the object data/set.
            relative = (
                key.removeprefix(f"{prefix}/") if key.startswith(f"{prefix}/") else key.removeprefix(parent)
            )
            if relative.endswith("/") or not relative:
                continue  # an empty object that the console made for a folder
            path = folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(bucket, key, str(path))
            count += 1
    return count


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _upload(s3: Any, folder: Path, target: str, name: str, *, compressed: bool) -> None:
    files = list(_files(folder))
    if not files:
        return
    bucket, prefix = _split_uri(target)
    if not compressed:
        below = {"output": "data"}.get(name, name)
        for path in files:
            s3.upload_file(str(path), bucket, f"{prefix}/{below}/{path.relative_to(folder)}")
        return
    archive = folder.parent / f".{name}.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for path in files:
            tar.add(path, arcname=str(path.relative_to(folder)))
    s3.upload_file(str(archive), bucket, f"{prefix}/{name}.tar.gz")
    archive.unlink()
