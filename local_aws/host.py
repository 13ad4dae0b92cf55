"""What jobs and builds need of the server they run on."""

from dataclasses import dataclass

from local_aws.faults import Faults
from local_aws.guard import Guard
from local_aws.job_container import Podman
from local_aws.settings import Settings


@dataclass(frozen=True)
class Host:
    """One server's settings, its guard, and the faults that somebody asked for."""

    settings: Settings
    guard: Guard
    faults: Faults
    podman: Podman | None = None  # where jobs run in an image
