"""Copy the model of a finished run to this machine."""

from pathlib import Path
from typing import Any

from runs.deployment import Deployment
from trainer.layout import RunLayout


class NoModel(Exception):
    """The run has left no model: it has not finished, or its name is another."""


def download_model(deployment: Deployment, run_id: str, folder: Path) -> list[Path]:
    """Copy every file of the run's model folder; what from_pretrained loads."""
    s3: Any = deployment.client("s3")
    prefix = f"{RunLayout(run_id).model_prefix}/"
    written = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=deployment.bucket, Prefix=prefix):
        for entry in page.get("Contents", []):
            path = folder / entry["Key"].removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(deployment.bucket, entry["Key"], str(path))
            written.append(path)
    if not written:
        raise NoModel(f"nothing below s3://{deployment.bucket}/{prefix}: has run {run_id} finished?")
    return written
