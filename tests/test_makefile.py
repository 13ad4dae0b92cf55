"""Setting up elsewhere than on Linux x86-64 ends with one clear error."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

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


def test_requirements_take_in_the_images_and_pin_all_but_torch() -> None:
    ours = (ROOT / "requirements.txt").read_text()
    image = (ROOT / "container" / "requirements.txt").read_text()
    assert "-r container/requirements.txt" in ours.splitlines()
    lines = [line for line in (ours + image).splitlines() if line and not line.startswith(("#", "-r"))]
    loose = {line.split(">=")[0] for line in lines if "==" not in line}
    assert loose == {"torch", "numpy"}  # bounded: a base image keeps its own
