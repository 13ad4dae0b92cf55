"""CodeBuild whose builds run: ministack keeps projects and builds, build.py runs the buildspec.

The buildspec's commands run as they stand, with the service role's credentials, so a deployment's custom
resource is answered by the build itself. Only `docker` is a stand-in (stand_in_docker.py): what it pushes
has a tag and a digest, and no content. Sources are S3 archives; variables are plain text.
"""

import contextvars
import json
import logging
import threading
import zipfile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped] # a dependency of ministack's
from botocore.exceptions import ClientError
from ministack.core.responses import error_response_json
from ministack.services import codebuild

from local_aws.build import BadBuildspec, Build, Buildspec, parse
from local_aws.host import Host
from local_aws.iam import CannotAssumeRole, Session, assume_service_role
from local_aws.settings import REGION

SERVICE_PRINCIPAL = "codebuild.amazonaws.com"

_KNOWN_IN_START = {"projectName", "environmentVariablesOverride", "buildspecOverride", "idempotencyToken"}

_log = logging.getLogger("local_aws.codebuild")


class BuildFailed(Exception):
    """The build cannot run; the message goes to its log."""


# StartBuild's request, for the thread that runs the build: ministack hands it the project alone.
_request: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("local_aws_start_build")


def install(host: Host) -> None:
    builds = _Builds(host)
    start = codebuild._start_build

    def start_build(data: dict[str, Any]) -> Any:
        unknown = data.keys() - _KNOWN_IN_START
        if unknown:
            return error_response_json(
                "InvalidInputException",
                f"local_aws does not emulate StartBuild with {', '.join(sorted(unknown))}",
            )
        _request.set(data)
        return start(data)

    codebuild.EXECUTE_BUILDS = True
    codebuild._start_build = start_build
    codebuild._execute_build = builds.execute
    codebuild._container_for_build = builds.container


class _Builds:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._running: dict[str, Build] = {}

    def container(self, build_id: str) -> "_Removable | None":
        """What StopBuild removes."""
        running = self._running.get(build_id)
        return _Removable(running) if running else None

    def execute(self, build_id: str, project: dict[str, Any]) -> None:
        """The whole life of a build, on a thread of its own."""
        record = codebuild._builds[build_id]
        emit = codebuild._log_sink(record)
        timed_out = threading.Event()
        try:
            succeeded = self._run(build_id, project, record, emit, timed_out)
            status = "SUCCEEDED" if succeeded else "FAILED"
        except (BuildFailed, BadBuildspec, ClientError, CannotAssumeRole) as error:
            emit(f"[Container] {error}")
            status = "FAILED"
        except Exception as error:  # noqa: BLE001 - the thread's boundary: a defect of ours must end the build
            _log.exception("build=%s", build_id)
            emit(f"[Container] {error!r}")
            status = "FAULT"
        finally:
            self._running.pop(build_id, None)
        if codebuild._stop_requested(build_id):
            status = "STOPPED"
        elif timed_out.is_set():
            status = "TIMED_OUT"
        codebuild._clear_stopped(build_id)
        codebuild._finish_build(record, status)
        _log.info("build=%s status=%s", build_id, status)

    def _run(
        self,
        build_id: str,
        project: dict[str, Any],
        record: dict[str, Any],
        emit: Any,
        timed_out: threading.Event,
    ) -> bool:
        session = assume_service_role(
            project["serviceRole"],
            service=SERVICE_PRINCIPAL,
            session_name=f"AWSCodeBuild-{build_id.rsplit(':', 1)[-1]}",
            source_arn=project["arn"],
            endpoint_url=self._host.settings.endpoint_url,
        )
        folder = Path(self._host.settings.state_dir) / "builds" / build_id.replace(":", "/")
        (folder / "src").mkdir(parents=True)
        _fetch_source(project["source"], session, folder)
        request = _request.get()
        build = Build(
            _buildspec(project["source"], request, folder / "src"),
            folder=folder,
            env={
                **_plain_variables(project["environment"].get("environmentVariables", [])),
                **_plain_variables(request.get("environmentVariablesOverride", [])),
                **session.environment(),
                "CODEBUILD_BUILD_ID": build_id,
                "CODEBUILD_BUILD_ARN": record["arn"],
                "CODEBUILD_BUILD_NUMBER": str(record["buildNumber"]),
                "CODEBUILD_INITIATOR": record["initiator"],
                "AWS_REGION": REGION,
            },
            guard=self._host.guard,
            on_line=emit,
        )
        self._running[build_id] = build

        def on_timeout() -> None:
            timed_out.set()
            build.kill()

        timer = threading.Timer(codebuild._timeout_seconds(project), on_timeout)
        timer.daemon = True
        timer.start()
        try:
            return build.run(
                lambda phase, done: codebuild._record_phase(record, phase, "SUCCEEDED" if done else "FAILED")
            )
        finally:
            timer.cancel()


class _Removable:
    def __init__(self, build: Build) -> None:
        self._build = build

    def remove(self, **_options: Any) -> None:
        self._build.kill()


def _fetch_source(source: dict[str, Any], session: Session, folder: Path) -> None:
    if source["type"] == "NO_SOURCE":
        return
    if source["type"] != "S3" or not source["location"].endswith(".zip"):
        raise BuildFailed(
            f"local_aws builds from a .zip in S3, not from {source['type']} {source.get('location')}"
        )
    bucket, _, key = source["location"].removeprefix("arn:aws:s3:::").partition("/")
    archive = folder / "source.zip"
    session.client("s3").download_file(bucket, key, str(archive))
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            path = Path(opened.extract(member, folder / "src"))
            mode = member.external_attr >> 16
            if mode and path.is_file():
                path.chmod(mode & 0o777)  # zipfile forgets which files may be executed


def _buildspec(source: dict[str, Any], request: dict[str, Any], folder: Path) -> Buildspec:
    """Inline, or the name of a file in the source; YAML, of which JSON is a part."""
    text = request.get("buildspecOverride") or source.get("buildspec") or "buildspec.yml"
    if "\n" not in text and not text.lstrip().startswith("{"):
        path = folder / text
        if not path.is_file():
            raise BuildFailed(f"YAML_FILE_ERROR: {text} does not exist in the source")
        text = path.read_text()
    try:
        return parse(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise BuildFailed(f"YAML_FILE_ERROR: {error}") from error


def _plain_variables(variables: list[dict[str, Any]]) -> dict[str, str]:
    other = [v["name"] for v in variables if v.get("type", "PLAINTEXT") != "PLAINTEXT"]
    if other:
        raise BuildFailed(f"local_aws takes PLAINTEXT variables alone, not {json.dumps(other)}")
    return {v["name"]: v["value"] for v in variables}
