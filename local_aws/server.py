"""The embedded AWS's process: ministack with this package's additions, on a socket it was handed.

Runs in the environment that environment.py makes, started by supervisor.py with two arguments, the settings
as JSON and the number of the listening socket. It ends on SIGTERM and when its standard input closes, which
is when the supervisor has died; every job and build ends first. Nothing is saved: what lives in the account,
lives in this process.
"""

import asyncio
import os
import signal
import sys
import threading

import ministack.app
from hypercorn.asyncio import serve  # type: ignore[import-not-found]
from hypercorn.config import Config  # type: ignore[import-not-found]

from local_aws import (
    aws_sdk_task,
    branches,
    codebuild,
    job_container,
    kept_resources,
    refusals,
    s3_conditions,
    step_functions,
)
from local_aws.endpoint_network import EndpointNetwork
from local_aws.faults import Faults
from local_aws.guard import Guard
from local_aws.host import Host
from local_aws.job_container import Podman
from local_aws.sagemaker_api import SageMaker
from local_aws.service_quotas import Quotas
from local_aws.settings import Settings


def main(settings: Settings, listener_fd: int) -> None:
    guard = Guard()
    guard.watch(os.getpid())  # our own group holds the processes that run Lambda functions
    quotas = Quotas(settings.quotas_file)
    host = Host(settings, guard, Faults(settings.faults_file), _podman(settings))
    sagemaker = SageMaker(host, quotas)
    quotas.install()
    sagemaker.install()
    branches.install(settings)
    step_functions.install(sagemaker, settings)
    aws_sdk_task.install()
    codebuild.install(host)
    kept_resources.install()
    refusals.install()
    s3_conditions.install()
    _pretend_tls()

    def end(*_: object) -> None:
        guard.end_all()
        # No orderly exit: it would wait for threads that poll jobs and for clients' idle connections.
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = Config()
    config.bind = [f"fd://{listener_fd}"]
    config.keep_alive_timeout = 75
    asyncio.run(serve(ministack.app.app, config, shutdown_trigger=_never))


def _podman(settings: Settings) -> Podman | None:
    if settings.image is None:
        return None
    job_container.remove_leftovers()
    # Only root can make a network of its own; anybody else's containers see this machine's.
    network = f"ns:{EndpointNetwork(settings.port).path}" if os.geteuid() == 0 else "host"
    return Podman(settings.image, network, settings.job_memory)


async def _never() -> None:
    """Without a trigger of its own, hypercorn would put its handlers in the place of ours."""
    await asyncio.Event().wait()


def _end_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _pretend_tls() -> None:
    """Let every request count as encrypted: TLS-only buckets refuse others, and loopback is no wire."""
    pin = ministack.app.pin_request_origin
    ministack.app.pin_request_origin = lambda source_ip, _secure: pin(source_ip, True)


if __name__ == "__main__":
    main(Settings.from_json(sys.argv[1]), int(sys.argv[2]))
