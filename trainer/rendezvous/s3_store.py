"""A bucket behind obstore, with what boto3 knows of this machine.

Credentials, region and endpoint come from boto3, so this works wherever boto3 does: SageMaker's
container credentials, SSO, a profile, or AWS_ENDPOINT_URL_S3 pointing at an emulator.
"""

import re
from datetime import timedelta
from typing import Final

import boto3
from botocore.exceptions import BotoCoreError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store

from trainer.rendezvous.errors import AccessDenied

REQUEST_TIMEOUT_S: Final = 120  # obstore's default of 30 s is short for a part on a slow link
REQUEST_RETRY_S: Final = 60.0  # how long one request is retried, at most


def s3_store(bucket: str) -> S3Store:
    """The bucket as obstore reaches it. Raises AccessDenied where boto3 finds no credentials."""
    session = boto3.Session()
    try:
        credentials = Boto3CredentialProvider(session)
        meta = session.client("s3").meta
    except (ValueError, BotoCoreError) as error:
        raise AccessDenied(
            f"s3://{bucket}: boto3 finds no usable credentials or region here ({error}); "
            "configure them as for the AWS CLI"
        ) from error
    endpoint, virtual_hosted = _address_style(str(meta.endpoint_url), bucket)
    return S3Store(
        bucket,
        region=meta.region_name,
        endpoint=endpoint,
        virtual_hosted_style_request=virtual_hosted,
        credential_provider=credentials,
        # S3 checks what arrives against this, so that no upload is durable damaged; signing the body, too,
        # would hash it a second time.
        checksum_algorithm="crc64nvme",
        unsigned_payload=True,
        client_options={
            "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
            "allow_http": str(meta.endpoint_url).startswith("http://"),
        },
        # The time is the bound, not the count: obstore's ten retries may all be over within two seconds.
        retry_config={"max_retries": 1000, "retry_timeout": timedelta(seconds=REQUEST_RETRY_S)},
    )


def _address_style(endpoint: str, bucket: str) -> tuple[str, bool]:
    """S3's own hosts take the bucket in the host name; emulators, gateways and VPC endpoints in the path."""
    scheme, _, host = endpoint.partition("://")
    if re.fullmatch(r"s3[a-z0-9.-]*\.amazonaws\.com(\.cn)?", host) and "." not in bucket:
        return f"{scheme}://{bucket}.{host}", True
    return endpoint, False
