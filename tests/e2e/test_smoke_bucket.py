"""The seed's first step: two local processes meet in a real bucket, by ambient credentials.

    AWS_SMOKE=1 make test-smoke BUCKET=name-of-a-bucket-of-yours

Puts some forty small objects below diloco-*/smoke-<id>/ of that bucket (well under a cent) and
deletes none. Without AWS_SMOKE=1 the same test runs against an S3 endpoint on this machine.
"""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from trainer.layout import RunLayout
from trainer.rendezvous.object_store import open_store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> str:
    if os.environ.get("AWS_SMOKE") != "1":
        found: str = request.getfixturevalue("s3_bucket")
        return found
    name = os.environ.get("BUCKET")
    assert name, "AWS_SMOKE=1 needs BUCKET=name of a bucket that your credentials may write"
    return f"s3://{name}"


def test_two_processes_meet_in_a_bucket_and_hold_the_same_weights(bucket: str, tmp_path: Path) -> None:
    run_id = f"smoke-{uuid.uuid4().hex[:8]}"
    argv = [sys.executable, "-m", "trainer.local", "runs/examples/smoke.json", "--store", bucket]
    subprocess.run([*argv, "--run-id", run_id, "--out", str(tmp_path)], cwd=ROOT, check=True, timeout=250)
    report = json.loads((tmp_path / run_id / "report.json").read_text())
    assert report["status"] == "SUCCEEDED"
    hashes = {replica["weights_hash"] for replica in report["replicas"]}
    assert len(hashes) == 1 and None not in hashes
    store, keys = open_store(bucket), RunLayout(run_id)
    for rank in range(2):
        assert keys.payload(0, rank, 0) in store.keys(f"diloco-data/{run_id}")
    assert store.names(keys.round_prefix(1)) == ["rank_0000.json", "rank_0001.json", "roster.json"]
