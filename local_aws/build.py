"""One CodeBuild build: a buildspec's phases, run as shell commands in a private folder.

Phases, `finally`, what a failure skips, and CODEBUILD_* follow "Build specification reference" and "Build
phase transitions" (CodeBuild user guide): a failed install or pre_build skips all that follows, a failed
build still runs post_build, and `finally` runs whatever its commands did. Commands see one another's
directory and variables, as in one shell; each runs in a shell of its own, so that `exit 1` in one ends that
command alone.
"""

import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_aws.guard import Guard
from local_aws.job_process import JobProcess, OnLine

PHASES = ("install", "pre_build", "build", "post_build")

_KNOWN = {"version", "env", "phases", "artifacts", "cache"}
_KNOWN_IN_ENV = {"variables", "shell"}
_KNOWN_IN_PHASE = {"commands", "finally", "runtime-versions", "on-failure"}

_STAND_IN = Path(__file__).with_name("stand_in_docker.py")

OnPhase = Callable[[str, bool], None]


class BadBuildspec(Exception):
    """The buildspec asks for what is not emulated; the message names it."""


@dataclass(frozen=True)
class Phase:
    name: str
    commands: list[str]
    always: list[str]  # the buildspec's `finally`


@dataclass(frozen=True)
class Buildspec:
    shell: str
    variables: dict[str, str]
    phases: list[Phase]


def parse(document: Any) -> Buildspec:
    """Raises BadBuildspec."""
    if not isinstance(document, dict) or str(document.get("version")) != "0.2":
        raise BadBuildspec("a buildspec is a map with version 0.2")
    env, phases = document.get("env", {}), document.get("phases", {})
    unknown = [
        *(document.keys() - _KNOWN),
        *(f"env.{key}" for key in env.keys() - _KNOWN_IN_ENV),
        *(f"phases.{key}" for key in phases.keys() - set(PHASES)),
        *(f"phases.{n}.{key}" for n, phase in phases.items() for key in phase.keys() - _KNOWN_IN_PHASE),
    ]
    if unknown:
        raise BadBuildspec(f"not emulated in a buildspec: {', '.join(sorted(unknown))}")
    return Buildspec(
        shell=env.get("shell", "sh"),
        variables={key: str(value) for key, value in env.get("variables", {}).items()},
        phases=[
            Phase(name, phases[name].get("commands", []), phases[name].get("finally", []))
            for name in PHASES
            if name in phases
        ],
    )


class Build:
    """Runs a Buildspec in `folder`, whose src/ holds the source."""

    def __init__(
        self, spec: Buildspec, *, folder: Path, env: dict[str, str], guard: Guard, on_line: OnLine
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._guard = guard
        self._on_line = on_line
        self._process: JobProcess | None = None
        self._killed = False
        self._variables = {
            "PATH": f"{_stand_ins(folder)}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "STAND_IN_DOCKER_STATE": str(folder / "images.json"),
            "CODEBUILD_SRC_DIR": str(folder / "src"),
            **spec.variables,
            **env,  # the project's and the request's variables win over the buildspec's
        }

    def run(self, on_phase: OnPhase) -> bool:
        """Whether every phase that ran succeeded; `on_phase` hears of each."""
        self._save_shell(self._folder / "src", self._variables)
        succeeding, skip_rest = True, False
        for phase in self._spec.phases:
            if skip_rest or self._killed:
                break
            done = self._run_phase(phase, succeeding)
            on_phase(phase.name.upper(), done)
            succeeding = succeeding and done
            skip_rest = not done and phase.name != "build"
        return succeeding and not self._killed

    def kill(self) -> None:
        self._killed = True
        if self._process is not None:
            self._process.kill()

    def _run_phase(self, phase: Phase, succeeding: bool) -> bool:
        done = all(self._run_command(command, succeeding) for command in phase.commands)
        # A list, not a generator: one failed command of `finally` doesn't keep the next from running.
        always = [self._run_command(command, succeeding and done) for command in phase.always]
        return done and all(always)

    def _run_command(self, command: str, succeeding: bool) -> bool:
        if self._killed:
            return False
        self._on_line(f"[Container] Running command {command}")
        state, directory = self._folder / "shell-variables", self._folder / "shell-directory"
        script = self._folder / "command.sh"
        script.write_text(
            f"set -a\n. {shlex.quote(str(state))}\n"
            f"CODEBUILD_BUILD_SUCCEEDING={int(succeeding)}\n"
            f'cd "$(cat {shlex.quote(str(directory))})" || exit 1\n'
            f"trap 'code=$?; export -p > {state}; pwd > {directory}; exit $code' EXIT\n"
            f"{command}\n"
        )
        self._process = JobProcess(
            [self._spec.shell, str(script)],
            cwd=self._folder,
            env={"PATH": self._variables["PATH"]},
            guard=self._guard,
            on_line=self._on_line,
        )
        code = self._process.wait()
        if code != 0:
            self._on_line(f"[Container] Command did not exit successfully {command} exit status {code}")
        return code == 0

    def _save_shell(self, directory: Path, variables: dict[str, str]) -> None:
        (self._folder / "shell-directory").write_text(str(directory))
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        (self._folder / "shell-variables").write_text("".join(lines))


def _stand_ins(folder: Path) -> Path:
    """A folder for the front of the PATH; Python is the bare one, as in CodeBuild's images."""
    tools = folder / "bin"
    tools.mkdir()
    for name, command in _tool_commands():
        path = tools / name
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
    return tools


def _tool_commands() -> Iterator[tuple[str, str]]:
    for name in ("docker", "aws"):
        yield name, f"{shlex.quote(sys.executable)} -I {shlex.quote(str(_STAND_IN))} {name}"
    bare_python: str = getattr(sys, "_base_executable", sys.executable)
    for name in ("python", "python3"):
        yield name, shlex.quote(bare_python)
