"""The virtual environment that the embedded AWS runs in.

ministack pins one version of botocore. Installed beside the project it would decide the project's boto3,
so it gets an environment of its own. The folder is complete when its marker holds the requirements it was
made from; anything else (an interrupted install, another version) is made again.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).resolve().parent
PROJECT_ROOT = PACKAGE_FOLDER.parent
DEFAULT_VENV = PROJECT_ROOT / ".venv-aws"

_REQUIREMENTS = PACKAGE_FOLDER / "requirements.txt"
_MARKER = "local_aws-requirements.txt"


class SetupFailed(Exception):
    """The environment could not be made; the message ends with what the installer said."""


def ensure(venv: Path) -> Path:
    """Make `venv` unless it is there already, and return its Python. Raises SetupFailed."""
    venv.parent.mkdir(parents=True, exist_ok=True)
    # One at a time: two tests may start servers at once, and both find the folder missing.
    with _locked(venv.parent):
        return _ensure(venv)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on `folder`, which leaves no file behind and ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _ensure(venv: Path) -> Path:
    python = venv / "bin" / "python"
    wanted = _REQUIREMENTS.read_text()
    marker = venv / _MARKER
    if python.exists() and marker.exists() and marker.read_text() == wanted:
        return python
    if venv.exists():
        if not (venv / "pyvenv.cfg").exists():
            raise SetupFailed(f"{venv} exists and is no virtual environment: name another with --venv")
        shutil.rmtree(venv)
    print(f"local_aws: installing ministack into {venv}", file=sys.stderr, flush=True)
    _run([sys.executable, "-m", "venv", str(venv)])
    _run(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
            str(_REQUIREMENTS),
        ]
    )
    marker.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise SetupFailed(f"{' '.join(command)} exited with {done.returncode}:\n{said}")
