"""The command line of the embedded AWS; see the package's docstring."""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from local_aws import environment
from local_aws.settings import STOP_GRACE_S, Settings
from local_aws.supervisor import ServerFailed, running

# What a shell reports for a command it can't find (POSIX, "Exit Status for Commands").
COMMAND_NOT_FOUND = 127
INTERRUPTED = 128 + signal.SIGINT

WATCH_S = 0.5  # how soon a server that died by itself is noticed


def main(arguments: Sequence[str]) -> int:
    own, command = _split(arguments)
    options = _parser().parse_args(own)
    try:
        if options.action == "setup":
            environment.ensure(options.venv)
            return 0
        _check_runtime(options)
        return _serve(options, command)
    except (ServerFailed, environment.SetupFailed) as error:
        print(f"local_aws: {error}", file=sys.stderr)
        return 1


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ours before the first `--`, the command's after it."""
    if "--" not in arguments:
        return list(arguments), []
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m local_aws",
        description="An AWS account on this machine. With `-- CMD ARGS...` it runs CMD and stops.",
    )
    parser.add_argument("action", nargs="?", choices=["setup"], help="only make the virtual environment")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; a free one by default")
    parser.add_argument(
        "--state-dir", type=Path, help="keeps job folders and server.log; a temporary folder by default"
    )
    parser.add_argument("--venv", type=Path, default=environment.DEFAULT_VENV, help="default: %(default)s")
    parser.add_argument(
        "--quotas", type=Path, metavar="FILE.json", help="quota names to values, over the defaults"
    )
    parser.add_argument(
        "--stop-grace-s",
        type=float,
        default=STOP_GRACE_S,
        help="from SIGTERM to SIGKILL of a stopped job; SageMaker's %(default)s by default",
    )
    parser.add_argument(
        "--runtime",
        choices=["process", "podman"],
        default="process",
        help="what a job is: a process of the project's environment, or a container (default: %(default)s)",
    )
    parser.add_argument("--image", help="with --runtime podman: run for every job, whatever image it names")
    parser.add_argument("--job-memory", help="with --runtime podman: most memory of a job, e.g. 4g")
    return parser


def _check_runtime(options: argparse.Namespace) -> None:
    """Raises ServerFailed where jobs could not run."""
    if options.runtime == "process":
        if options.image or options.job_memory:
            raise ServerFailed("--image and --job-memory are for --runtime podman")
        return
    if not options.image:
        raise ServerFailed("--runtime podman needs --image: the trainer image, built as docs/image.md says")
    try:
        look = ["podman", "image", "exists", options.image]
        if subprocess.run(look, capture_output=True, check=False).returncode != 0:
            raise ServerFailed(f"podman has no image {options.image}: build it as docs/image.md says")
    except FileNotFoundError as error:
        raise ServerFailed("podman is not installed, and --runtime podman runs jobs with it") from error


def _serve(options: argparse.Namespace, command: list[str]) -> int:
    stop = threading.Event()
    child: list[subprocess.Popen[bytes]] = []

    def on_signal(number: int, _frame: object) -> None:
        stop.set()
        # Ctrl-C reached the command already, as a member of the terminal's foreground group.
        if number == signal.SIGTERM and child:
            child[0].terminate()

    # Handlers stay in place until everything has ended: a second Ctrl-C must not cut the ending short.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)

    with running(
        venv=options.venv,
        port=options.port,
        state_dir=options.state_dir,
        stop_grace_s=options.stop_grace_s,
        quotas_file=options.quotas,
        image=options.image,
        job_memory=options.job_memory,
    ) as server:
        if stop.is_set():
            return INTERRUPTED
        if command:
            code = _run_command(command, server.settings, child)
        else:
            _announce(server.settings)
            while not stop.wait(WATCH_S) and server.has_died() is None:
                pass
            code = 0
        last_words = server.has_died()
    if last_words is not None:
        raise ServerFailed(f"the server died:\n{last_words}")
    return code


def _announce(settings: Settings) -> None:
    print(f"# Embedded AWS at {settings.endpoint_url}; its log is {settings.state_dir}/server.log")
    # A profile or a session token of the user's would win over the keys, or be sent with them.
    print("unset AWS_PROFILE AWS_DEFAULT_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL_S3")
    for name, value in {**settings.client_environment(), **_no_proxy()}.items():
        print(f"export {name}={shlex.quote(value)}")
    print("# Ctrl-C stops it and every job it runs.", flush=True)


def _no_proxy() -> dict[str, str]:
    """Where a proxy is set, clients would ask it for 127.0.0.1, which is another machine there."""
    if not urllib.request.getproxies():
        return {}
    known = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    value = f"{known},127.0.0.1" if known else "127.0.0.1"
    return {"NO_PROXY": value, "no_proxy": value}


def _run_command(command: list[str], settings: Settings, child: list[subprocess.Popen[bytes]]) -> int:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    try:
        process = subprocess.Popen(command, env={**inherited, **settings.client_environment(), **_no_proxy()})
    except OSError as error:
        print(f"local_aws: {command[0]}: {error.strerror}", file=sys.stderr)
        return COMMAND_NOT_FOUND
    child.append(process)
    code = process.wait()
    return code if code >= 0 else 128 - code  # a shell's way to name the signal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
