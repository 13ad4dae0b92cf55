"""What the supervisor tells the server: one JSON argument, read once."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

REGION = "us-east-1"
ACCOUNT = "000000000000"  # ministack's; no real account can have it

# SageMaker waits this long between SIGTERM and SIGKILL (StopTrainingJob, API reference).
STOP_GRACE_S = 120.0


@dataclass(frozen=True)
class Settings:
    """Everything that differs between two servers on one machine."""

    port: int
    state_dir: str
    project_root: str  # on the PYTHONPATH of jobs, as the image has the trainer on its
    job_python: str  # what `python` in a job's entrypoint stands for
    access_key_id: str  # the account's root
    secret_access_key: str
    stop_grace_s: float = STOP_GRACE_S
    quotas_file: str | None = None
    image: str | None = None  # jobs run in it, by podman; in the project's own environment otherwise
    job_memory: str | None = None  # of each such job, as podman's --memory takes it
    wait_scale: float = 1.0  # of the state machines' own pauses: 0.01 makes minutes of them seconds

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def jobs_folder(self) -> Path:
        return Path(self.state_dir) / "jobs"

    @property
    def faults_file(self) -> Path:
        return Path(self.state_dir) / "faults.json"

    def client_environment(self) -> dict[str, str]:
        """What a client needs, the CDK CLI included, to take this server for AWS."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        return cls(**json.loads(text))
