"""What CodeBuild runs to build the trainer image and to tell CloudFormation how it went.

One phase does it all: a `finally` block runs only when its own phase was reached, so with several
phases a failure in an early one would leave CloudFormation waiting. The answer goes by a file the
commands leave behind, not by CODEBUILD_BUILD_SUCCEEDING, which the documentation promises for
later phases only. Subshells, since CodeBuild keeps one shell for all commands of a build.
"""

from typing import Any, Final

# ImageUri, ResponseURL, StackId, RequestId and LogicalResourceId are set for each build by
# build_handler.py. A tag is a content hash, so what is there already is what would be built. The
# answer carries the image's digest, which is what jobs are started by: no push can change what it means.
_BUILD: Final = """\
( set -eu
  registry="${ImageUri%%/*}"
  path="${ImageUri#*/}"
  digest() {
    aws ecr describe-images --repository-name "${path%:*}" --image-ids imageTag="${path##*:}" \\
      --query 'imageDetails[0].imageDigest' --output text
  }
  if digest > image_digest 2> /dev/null; then
    echo "already there: $ImageUri"
  else
    aws ecr get-login-password | docker login --username AWS --password-stdin "$registry"
    docker build --platform linux/amd64 --build-arg BASE_IMAGE="$BaseImage" \\
      --label org.opencontainers.image.source="${CODEBUILD_SOURCE_REPO_URL:-unknown}" \\
      --label org.opencontainers.image.revision="${ImageUri##*:}" \\
      --file container/Dockerfile --tag "$ImageUri" .
    docker push "$ImageUri"
    digest > image_digest
  fi
  grep -q '^sha256:' image_digest
  touch image_is_there
)
"""

_ANSWER: Final = """\
( set -eu
  status=FAILED data=
  if [ -e image_is_there ]; then
    status=SUCCESS
    data=$(printf '"Digest":"%s"' "$(cat image_digest)")
  fi
  printf '{"Status":"%s","Reason":"Image build, see its log: %s","PhysicalResourceId":"trainer-image",' \\
    "$status" "${CODEBUILD_BUILD_URL:-$CODEBUILD_BUILD_ID}" > answer.json
  printf '"Data":{%s},' "$data" >> answer.json
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
