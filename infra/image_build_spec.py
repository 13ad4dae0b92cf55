"""What CodeBuild runs to build the trainer image and to tell CloudFormation how it went.

One phase does it all: a `finally` block runs only when its own phase was reached, so with several
phases a failure in an early one would leave CloudFormation waiting. The answer goes by a file the
commands leave behind, not by CODEBUILD_BUILD_SUCCEEDING, which the documentation promises for
later phases only. Subshells, since CodeBuild keeps one shell for all commands of a build.
"""

from typing import Any, Final

# ImageUri, ResponseURL, StackId, RequestId and LogicalResourceId are set for each build by
# build_handler.py. A tag is a content hash, so what is there already is what would be built.
_BUILD: Final = """\
( set -eu
  registry="${ImageUri%%/*}"
  aws ecr get-login-password | docker login --username AWS --password-stdin "$registry"
  if docker manifest inspect "$ImageUri" > /dev/null 2>&1; then
    echo "already there: $ImageUri"
  else
    docker build --platform linux/amd64 --build-arg BASE_IMAGE="$BaseImage" \\
      --label org.opencontainers.image.source="${CODEBUILD_SOURCE_REPO_URL:-unknown}" \\
      --label org.opencontainers.image.revision="${ImageUri##*:}" \\
      --file container/Dockerfile --tag "$ImageUri" .
    docker push "$ImageUri"
  fi
  touch image_is_there
)
"""

_ANSWER: Final = """\
( set -eu
  status=FAILED
  if [ -e image_is_there ]; then status=SUCCESS; fi
  printf '{"Status":"%s","Reason":"Image build: %s","PhysicalResourceId":"trainer-image",' \\
    "$status" "${CODEBUILD_BUILD_URL:-$CODEBUILD_BUILD_ID}" > answer.json
  printf '"StackId":"%s","RequestId":"%s","LogicalResourceId":"%s"}' \\
    "$StackId" "$RequestId" "$LogicalResourceId" >> answer.json
  curl --silent --show-error --fail --retry 5 --header 'Content-Type:' \\
    --upload-file answer.json "$ResponseURL"
)
"""


def build_spec(base_image: str) -> dict[str, Any]:
    """The buildspec, in CodeBuild's format 0.2."""
    return {
        "version": "0.2",
        "env": {"variables": {"BaseImage": base_image}},
        "phases": {"build": {"commands": [_BUILD], "finally": [_ANSWER]}},
    }
