"""Starts one embedded AWS, waits until it answers, and ends it with all it started.

The listening socket is bound here and handed to the server: a free port cannot be taken by somebody else
in between, and a port in use is known before anything is started. The server runs in a session of its own,
since Ctrl-C reaches a whole foreground group and the order of ending is ours: first whoever uses the
server, then the server. It also ends when the pipe on its standard input closes, that is when this process
dies without having had the time to say so.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from local_aws import environment
from local_aws.settings import ACCOUNT, REGION, STOP_GRACE_S, Settings

START_TIMEOUT_S = 60.0  # about 1 s on an idle laptop; a loaded CI machine takes many times that
STOP_TIMEOUT_S = 10.0  # the server only kills its jobs: nothing of the account outlives it

PODMAN_ENV = ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "XDG_RUNTIME_DIR")

_SUBFOLDERS = ("jobs", "builds", "tmp")  # of the state folder; each server makes them anew


@dataclass(frozen=True)
class Server:
    """A running embedded AWS."""

    settings: Settings
    process: subprocess.Popen[bytes]

    def has_died(self) -> str | None:
        """The end of its log, once the server has ended by itself."""
        return None if self.process.poll() is None else _tail(_log_file(self.settings))


class ServerFailed(Exception):
    """The server did not come up, or died; the message says what is known."""


@contextlib.contextmanager
def running(
    *,
    venv: Path,
    port: int = 0,
    state_dir: Path | None = None,
    stop_grace_s: float = STOP_GRACE_S,
    quotas_file: Path | None = None,
    image: str | None = None,
    job_memory: str | None = None,
    wait_scale: float = 1.0,
) -> Iterator[Server]:
    """An embedded AWS for the length of a `with`; `port` 0 takes a free one.

    Without `state_dir` the jobs' folders and the server's log go to a temporary folder and end with it.
    Raises ServerFailed, and environment.SetupFailed where its environment can't be made.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(port))
        python = environment.ensure(venv)
        folder = stack.enter_context(_state_folder(state_dir))
        settings = Settings(
            port=listener.getsockname()[1],
            state_dir=str(folder),
            project_root=str(environment.PROJECT_ROOT),
            job_python=sys.executable,
            # The CDK CLI remembers an account's id and its bootstrap for each access key, for ever and on
            # disk: a key used twice would send it to what the last server had.
            access_key_id=f"AKIALOCAL{secrets.token_hex(6).upper()[:11]}",
            secret_access_key=secrets.token_hex(20),
            stop_grace_s=stop_grace_s,
            quotas_file=str(quotas_file) if quotas_file else None,
            image=image,
            job_memory=job_memory,
            wait_scale=wait_scale,
        )
        server = _start(python, settings, listener)
        listener.close()
        try:
            _wait_until_ready(server, settings)
            yield Server(settings, server)
        finally:
            _stop(server)


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Connections of a server that ended a moment ago linger in TIME_WAIT and would hold the port.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ServerFailed(
            f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): name another, or leave out --port"
        ) from error
    listener.listen(256)
    return listener


@contextlib.contextmanager
def _state_folder(asked: Path | None) -> Iterator[Path]:
    if asked is None:
        with tempfile.TemporaryDirectory(prefix="local_aws-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    folder = asked.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ServerFailed(
                f"{folder} is in use by another embedded AWS: name another --state-dir"
            ) from error
        # Names of jobs are unique in an account, and the account of the last server is gone.
        for name in _SUBFOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        yield folder


def _log_file(settings: Settings) -> Path:
    return Path(settings.state_dir) / "server.log"


def _start(python: Path, settings: Settings, listener: socket.socket) -> subprocess.Popen[bytes]:
    for name in _SUBFOLDERS:
        (Path(settings.state_dir) / name).mkdir()
    with _log_file(settings).open("wb") as log:
        return subprocess.Popen(
            [str(python), "-m", "local_aws.server", settings.to_json(), str(listener.fileno())],
            env=_server_environment(settings),
            cwd=settings.state_dir,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )


def _server_environment(settings: Settings) -> dict[str, str]:
    """ministack's own options. Nothing of the user's AWS configuration gets in."""
    return {
        "PATH": f"{Path(settings.job_python).parent}:{os.environ.get('PATH', os.defpath)}",
        "HOME": settings.state_dir,
        "TMPDIR": str(Path(settings.state_dir) / "tmp"),  # Lambda's code lies there and ends with the folder
        "PYTHONPATH": settings.project_root,
        "PYTHONDONTWRITEBYTECODE": "1",
        "GATEWAY_PORT": str(settings.port),
        "BIND_HOST": "127.0.0.1",
        "AUTH": "true",
        "LOG_LEVEL": os.environ.get("LOCAL_AWS_LOG_LEVEL", "INFO"),
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        # Where podman keeps its images, and how it runs: as in the shell that started this.
        **{name: os.environ[name] for name in PODMAN_ENV if name in os.environ},
        "SFN_WAIT_SCALE": str(settings.wait_scale),
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        **settings.client_environment(),
    }


def _wait_until_ready(server: subprocess.Popen[bytes], settings: Settings) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise ServerFailed(f"the server ended with {server.returncode}:\n{_tail(_log_file(settings))}")
        try:
            with direct.open(f"{settings.endpoint_url}/_ministack/health", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.05)
    raise ServerFailed(f"no answer within {START_TIMEOUT_S:.0f} s:\n{_tail(_log_file(settings))}")


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-20:])


def _stop(server: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL to the server's whole group, which holds Lambda's processes too."""
    stdin: IO[bytes] | None = server.stdin
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    if stdin is not None:
        stdin.close()
