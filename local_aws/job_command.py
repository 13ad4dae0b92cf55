"""A training job's command: how it is started, and SageMaker's words for how it failed."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local_aws.host import Host
from local_aws.iam import Session
from local_aws.job_container import JobContainer
from local_aws.job_folder import FAILURE_CHARACTERS, JobFolder
from local_aws.job_process import JobProcess

# SageMaker's words for a container that the kernel killed for its memory.
OUT_OF_MEMORY = (
    "ClientError: Please use an instance type with more memory, or reduce the size of job data processed on "
    "an instance"
)


def start(
    host: Host,
    request: dict[str, Any],
    *,
    arn: str,
    session: Session,
    base: Path,
    on_line: Callable[[str], None],
) -> JobProcess | JobContainer:
    """The command of a CreateTrainingJob request, running in `base`. Raises OSError where it can't start."""
    algorithm = request["AlgorithmSpecification"]
    argv = [*algorithm["ContainerEntrypoint"], *algorithm.get("ContainerArguments", [])]
    env = _environment(request, arn, session)
    if host.podman is not None:
        return JobContainer(
            host.podman,
            argv,
            name=request["TrainingJobName"],
            base=base,
            env=env,
            guard=host.guard,
            on_line=on_line,
        )
    settings = host.settings
    if argv[0] in ("python", "python3"):
        argv[0] = settings.job_python
    of_the_image = {
        "PATH": f"{Path(settings.job_python).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(base / "code"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": settings.project_root,
        "PYTHONUNBUFFERED": "1",
        "SAGEMAKER_BASE_DIR": str(base),
    }
    return JobProcess(argv, cwd=base / "code", env=of_the_image | env, guard=host.guard, on_line=on_line)


def _environment(request: dict[str, Any], arn: str, session: Session) -> dict[str, str]:
    """Nothing of this machine's, but what SageMaker sets and what N jobs at once need."""
    return {
        # As many threads as cores in each of N jobs would leave a laptop with nothing but switching.
        "OMP_NUM_THREADS": "1",
        **request.get("Environment", {}),
        **session.environment(),
        "TRAINING_JOB_NAME": request["TrainingJobName"],
        "TRAINING_JOB_ARN": arn,
    }


def algorithm_error(code: int, folder: JobFolder, process: JobProcess | JobContainer | None) -> str:
    """SageMaker's wording: what the job wrote to output/failure, then how it ended."""
    if code < 0:
        ending = f", exit code: {128 - code} ({signal.Signals(-code).name})"
    else:
        ending = f", exit code: {code}"
    prefix = "AlgorithmError: "
    if isinstance(process, JobContainer) and process.out_of_memory:
        return f"{OUT_OF_MEMORY}{ending}"
    room = FAILURE_CHARACTERS - len(prefix) - len(ending)
    return f"{prefix}{folder.failure_text()[:room]}{ending}"
