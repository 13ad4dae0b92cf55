"""buildah and podman for these tests: a storage of their own, no daemon, nothing of the user's.

What both read is in two files that environment variables name (containers-storage.conf(5),
containers.conf(5)), so that `podman` means the same here, in local_aws, and in the buildspec.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# Kept between runs: the stand-in base and the image's layers.
CACHE: Final = ROOT / ".cache" / "container"
TOOLS: Final = ("buildah", "podman", "runc", "conmon", "mmdebstrap")
INSTALL: Final = f"apt-get update && apt-get install -y --no-install-recommends {' '.join(TOOLS)}"

# runc, and control groups made by it: systemd isn't there to ask in a container or a small machine.
# Limits below this machine's own, which a container may not exceed.
CONTAINERS_CONF: Final = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=16384:16384"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Failed(Exception):
    """A command of the engine failed; the message ends with what it said."""


def missing() -> str | None:
    """What these tests need and this machine lacks, as one sentence with the remedy."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"not installed: {', '.join(absent)}. On Debian, as root: {INSTALL}"
    return None if os.geteuid() == 0 else "making a base, a network and memory limits needs root"


def environ() -> dict[str, str]:
    """This process's environment, with the engine's files and without this machine's AWS."""
    run = Path(tempfile.gettempdir()) / f"container-tests-{ROOT.stat().st_ino}"
    CACHE.mkdir(parents=True, exist_ok=True)
    storage, engine = CACHE / "storage.conf", CACHE / "containers.conf"
    storage.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{CACHE / "storage"}"\nrunroot = "{run}"\n'
    )
    engine.write_text(CONTAINERS_CONF)
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        "CONTAINERS_STORAGE_CONF": str(storage),
        "CONTAINERS_CONF": str(engine),
        "BUILDAH_ISOLATION": "chroot",  # RUN needs no more, and no systemd
    }


def buildah(*arguments: str, cwd: Path = ROOT) -> str:
    return _run("buildah", *arguments, cwd=cwd)


def podman(*arguments: str) -> str:
    return _run("podman", *arguments, cwd=ROOT)


def build(dockerfile: Path, *, tag: str, context: Path, arguments: dict[str, str] | None = None) -> str:
    """Build an image with layers kept; return what was printed. Raises Failed.

    The wheels that this machine's pip finds without an index are where the base's pip looks, too.
    """
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    mount = ["--volume", f"{wheels}:/opt/wheels:ro"] if Path(wheels).is_dir() and wheels else []
    options = [
        part for name, value in (arguments or {}).items() for part in ("--build-arg", f"{name}={value}")
    ]
    # Forced: what a failed build leaves would stay mounted in the cache.
    fixed = ["--layers", "--force-rm", "--format", "docker", "--file", str(dockerfile), "--tag", tag]
    return buildah("build", *fixed, *mount, *options, str(context))


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout
