"""One replica in its container, run the way SageMaker runs it."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.container.engine import environ
from tests.support.waiting import DEADLINE_S, wait_until
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.run_file import Run, create_run
from trainer.run_spec import parse


@dataclass(frozen=True)
class Bucket:
    """An S3 bucket, and podman's name of the network in which its endpoint is the only address."""

    endpoint: str
    name: str
    network: str

    def environ(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def store(self) -> ObjectStore:
        return open_store(f"s3://{self.name}")

    def run(self, run_id: str, **parameters: Any) -> Run:
        return create_run(self.store(), run_id, parse({"poll_interval_s": 0.1, **parameters}))


@dataclass
class Container:
    """A container of `image`, entry point and arguments overridden, `ml` mounted at /opt/ml."""

    image: str
    bucket: Bucket
    ml: Path
    arguments: list[str]
    options: list[str] = field(default_factory=list)
    entrypoint: str = '["python", "-m", "trainer.replica_entrypoint"]'

    def __post_init__(self) -> None:
        told = self.bucket.environ() | {"TRAINING_JOB_NAME": "job", "OMP_NUM_THREADS": "1"}
        self.name = f"replica-{self.ml.parent.name}-{id(self)}"
        command = [
            *("podman", "run", "--rm", "--pull", "never", "--log-driver", "none", "--name", self.name),
            *("--network", self.bucket.network, "--volume", f"{self.ml}:/opt/ml"),
            *(part for name, value in told.items() for part in ("--env", f"{name}={value}")),
            *self.options,
            *("--entrypoint", self.entrypoint, self.image, *self.arguments),
        ]
        self.process = subprocess.Popen(
            command, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def end(self) -> tuple[int, str]:
        """Exit code and what it printed."""
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, output

    def failure(self) -> str:
        return (self.ml / "output" / "failure").read_text()

    def until(self, happened: Callable[[], object], what: str) -> None:
        def look() -> object:
            assert self.process.poll() is None, self.process.communicate()[0]
            return happened()

        wait_until(look, what)

    def remove(self) -> None:
        subprocess.run(
            ["podman", "rm", "--force", "--ignore", self.name],
            env=environ(),
            capture_output=True,
            check=False,
        )
        self.process.wait()
