"""Stands in for `docker`, and for two commands of `aws ecr`, in an emulated build.

    python stand_in_docker.py docker build -t NAME .
    python stand_in_docker.py aws ecr get-login-password --region us-east-1

No image is built: there is no Docker engine here. The Dockerfile must exist, the names of images must have
been built or tagged before they are pushed, and pushing makes the calls to ECR that a real push makes
("Required IAM permissions for pushing an image", ECR user guide) with the build's credentials, so that a
missing right or repository fails as there. The image's one layer names its Dockerfile and context: the same
files give the same digest. STAND_IN_DOCKER_FAILS=1 in the build's environment makes `build` fail, for tests
of what follows.
Runs as a script, with nothing but boto3.
"""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
_OPTIONS_WITHOUT_VALUE = {"--push", "--load", "--pull", "--no-cache", "--quiet", "-q", "--use", "--bootstrap"}
_NOTHING_TO_DO = {"version", "info", "--version", "logout", "images", "ps", "inspect"}


class Refused(Exception):
    """The command can't be carried out; the message is for the build's log."""


def main(arguments: Sequence[str]) -> int:
    program, *rest = arguments
    try:
        if program == "aws":
            _aws(rest)
        else:
            print(f"stand-in docker: {' '.join(rest)}", flush=True)
            _docker(rest)
    except Refused as error:
        print(f"stand-in {program}: {error}", file=sys.stderr)
        return 1
    return 0


def _aws(arguments: Sequence[str]) -> None:
    if list(arguments[:2]) == ["ecr", "describe-images"]:
        print(_digest(arguments))
        return
    if list(arguments[:2]) != ["ecr", "get-login-password"]:
        raise Refused(f"of `aws`, two commands of ecr are emulated, not `aws {' '.join(arguments)}`")
    token = boto3.client("ecr").get_authorization_token()
    print(token["authorizationData"][0]["authorizationToken"])


def _digest(arguments: Sequence[str]) -> str:
    """As --query 'imageDetails[0].imageDigest' --output text prints it."""
    (repository,), (image,) = _values(arguments, "--repository-name"), _values(arguments, "--image-ids")
    try:
        found = boto3.client("ecr").describe_images(
            repositoryName=repository, imageIds=[{"imageTag": image.removeprefix("imageTag=")}]
        )
    except ClientError as error:
        raise Refused(f"ecr describe-images: {error}") from error
    return str(found["imageDetails"][0]["imageDigest"])


def _docker(arguments: Sequence[str]) -> None:
    command, *rest = arguments or ["info"]
    if command == "buildx" and rest:
        command, *rest = rest
        if command in ("create", "inspect", "use", "ls", "rm"):
            return
    if command == "build":
        _build(rest)
    elif command == "tag":
        _tag(*rest)
    elif command == "push":
        _push(_positional(rest)[0])
    elif command == "login":
        _login(rest)
    elif command not in _NOTHING_TO_DO:
        raise Refused(f"`docker {command}` is not emulated")


def _login(arguments: Sequence[str]) -> None:
    if "--password-stdin" in arguments and not sys.stdin.read().strip():
        raise Refused("login: the password on standard input is empty")


def _build(arguments: Sequence[str]) -> None:
    if os.environ.get("STAND_IN_DOCKER_FAILS"):
        raise Refused("build fails, as STAND_IN_DOCKER_FAILS asks")
    context = Path(_positional(arguments)[-1])
    dockerfile = Path(*_values(arguments, "-f", "--file")) if _values(arguments, "-f", "--file") else None
    path = dockerfile or context / "Dockerfile"
    if not path.is_file():
        raise Refused(f"build: {path} does not exist")
    names = _values(arguments, "-t", "--tag")
    images = _images()
    layer = f"{path.read_text()}\n# context {_context_hash(context)}\n"
    images.update(dict.fromkeys(names, layer))
    _state_file().write_text(json.dumps(images))
    if "--push" in arguments:
        for name in names:
            _push(name)


def _context_hash(context: Path) -> str:
    """Of every file of the build context, as an image's layers depend on them."""
    state = hashlib.sha256()
    for path in sorted(path for path in context.rglob("*") if path.is_file()):
        state.update(f"{path.relative_to(context)}\0".encode() + path.read_bytes())
    return state.hexdigest()


def _tag(source: str, target: str) -> None:
    images = _images()
    if source not in images:
        raise Refused(f"tag: no image {source}; built or tagged so far: {', '.join(images) or 'none'}")
    images[target] = images[source]
    _state_file().write_text(json.dumps(images))


def _push(name: str) -> None:
    images = _images()
    if name not in images:
        raise Refused(f"push: no image {name}; built or tagged so far: {', '.join(images) or 'none'}")
    _, _, path = name.partition("/")
    repository, _, tag = path.partition(":")
    ecr = boto3.client("ecr")
    layer = images[name].encode()
    digest = _upload_layer(ecr, repository, layer)
    blob = {"mediaType": "application/octet-stream", "size": len(layer), "digest": digest}
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST_TYPE, "config": blob, "layers": [blob]}
    try:
        ecr.put_image(
            repositoryName=repository,
            imageManifest=json.dumps(manifest, sort_keys=True),
            imageManifestMediaType=_MANIFEST_TYPE,
            imageTag=tag or "latest",
        )
    except ecr.exceptions.ImageAlreadyExistsException:
        print(f"stand-in docker: {name} is there already")
    else:
        print(f"stand-in docker: pushed {name}")


def _upload_layer(ecr: Any, repository: str, layer: bytes) -> str:
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    known = ecr.batch_check_layer_availability(repositoryName=repository, layerDigests=[digest])
    if any(found.get("layerAvailability") == "AVAILABLE" for found in known.get("layers", [])):
        return digest
    upload = ecr.initiate_layer_upload(repositoryName=repository)["uploadId"]
    ecr.upload_layer_part(
        repositoryName=repository,
        uploadId=upload,
        partFirstByte=0,
        partLastByte=len(layer) - 1,
        layerPartBlob=layer,
    )
    ecr.complete_layer_upload(repositoryName=repository, uploadId=upload, layerDigests=[digest])
    return digest


def _state_file() -> Path:
    """Images by name, for the length of one build."""
    return Path(os.environ["STAND_IN_DOCKER_STATE"])


def _images() -> dict[str, str]:
    path = _state_file()
    images: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return images


def _values(arguments: Sequence[str], *names: str) -> list[str]:
    """The values of an option, given as `--name value` or `--name=value`."""
    found = []
    for index, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if name in names:
            found.append(value if separator else arguments[index + 1])
    return found


def _positional(arguments: Sequence[str]) -> list[str]:
    """What is left without options and their values."""
    found, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument.startswith("-"):
            skip = "=" not in argument and argument not in _OPTIONS_WITHOUT_VALUE
        else:
            found.append(argument)
    if not found:
        raise Refused(f"nothing to work on in {' '.join(arguments)}")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
