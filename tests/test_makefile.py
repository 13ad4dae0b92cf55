"""Setting up elsewhere than on Linux x86-64 ends with one clear error."""

import importlib.metadata
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def check_platform(folder: Path, uname: str) -> subprocess.CompletedProcess[str]:
    fake = folder / "uname"
    fake.write_text(f"#!/bin/sh\necho {uname}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        ["make", "check-platform"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("uname", ["Darwin arm64", "Linux aarch64", "MINGW64_NT-10.0 x86_64"])
def test_another_platform_is_told_what_to_do(tmp_path: Path, uname: str) -> None:
    done = check_platform(tmp_path, uname)
    assert done.returncode != 0
    assert f"this is {uname}" in done.stderr
    assert "docker run --platform linux/amd64" in done.stderr
    assert "WSL2" in done.stderr


def test_linux_x86_64_goes_on(tmp_path: Path) -> None:
    assert check_platform(tmp_path, "Linux x86_64").returncode == 0


def test_the_images_tests_fail_without_their_tools_and_say_what_to_install(tmp_path: Path) -> None:
    env = os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/container"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "make test-container: not installed: buildah, podman, runc, conmon, mmdebstrap. On Debian, as root: "
        "apt-get update && apt-get install -y --no-install-recommends buildah podman runc conmon mmdebstrap"
    ) in done.stdout + done.stderr


def test_the_makefile_and_the_dockerfile_install_the_same_torch() -> None:
    made, built = ((ROOT / name).read_text() for name in ("Makefile", "container/Dockerfile"))
    for given, taken in (("TORCH", r"(torch==\S+)"), ("TORCH_INDEX", r"ARG TORCH_INDEX=(\S+)")):
        assert re.findall(rf"^{given} := (\S+)$", made, re.MULTILINE) == re.findall(taken, built)


def _canonical(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{canonicalize_name(name)}=={version}"


def test_the_lock_holds_what_the_image_asks_for_and_what_torch_needs() -> None:
    """Without a network: a requirement changed, or a torch with other needs, and no `make lock`."""
    lock = (ROOT / "container" / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[a-z])", lock.partition("make lock\n")[2])
    pinned = {_canonical(entry.split()[0]) for entry in entries}
    assert all("--hash=sha256:" in entry for entry in entries)
    asked = (ROOT / "container" / "requirements.txt").read_text().splitlines()
    assert {_canonical(line) for line in asked if "==" in line} <= pinned
    names = {entry.partition("==")[0] for entry in pinned}
    needs = [Requirement(line) for line in importlib.metadata.requires("torch") or []]
    ours = {need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})}
    assert {name for name in ours if not name.startswith(("nvidia-", "triton"))} <= names
    assert "torch" not in names


def test_requirements_take_in_the_images_and_pin_all_but_torch() -> None:
    ours = (ROOT / "requirements.txt").read_text()
    image = (ROOT / "container" / "requirements.txt").read_text()
    assert "-r container/requirements.txt" in ours.splitlines()
    lines = [line for line in (ours + image).splitlines() if line and not line.startswith(("#", "-r"))]
    loose = {line.split(">=")[0] for line in lines if "==" not in line}
    assert loose == {"torch", "numpy"}  # bounded: a base image keeps its own
