"""The image of a training job: looked up, never run.

Pulling from the account's own ECR asks for rights of the execution role and for an image under that tag, and
a run on AWS fails where either is missing; so does a job here. Images of other registries are taken on trust.
"""

from botocore.exceptions import ClientError

from local_aws.iam import AccessDenied, Session
from local_aws.job_folder import JobFailed
from local_aws.settings import ACCOUNT, REGION

_REGISTRY = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"


def look_up(image: str, session: Session) -> None:
    """Raises JobFailed where SageMaker could not pull `image` as the execution role."""
    registry, _, path = image.partition("/")
    if registry != _REGISTRY:
        return
    name, by_digest, reference = path.partition("@")
    if not by_digest:
        name, _, reference = path.partition(":")
    wanted = {"imageDigest" if by_digest else "imageTag": reference or "latest"}
    repository = f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/{name}"
    try:
        session.caller.require("ecr:GetAuthorizationToken", "*")
        session.caller.require("ecr:GetDownloadUrlForLayer", repository)
        # BatchGetImage is evaluated by ECR itself.
        found = session.client("ecr").batch_get_image(repositoryName=name, imageIds=[wanted])
    except (AccessDenied, ClientError) as error:
        raise JobFailed(f"ClientError: Cannot pull {image}: {error}") from error
    if not found["images"]:
        raise JobFailed(f"ClientError: Cannot pull {image}: the repository has no such image")
