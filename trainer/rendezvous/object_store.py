"""A bucket, or a folder that stands for one, with answers that leave no doubt.

A thin layer over obstore, which speaks `s3://`, `file://` and memory alike. What it adds is
the meaning of an answer: an object is absent, denied, damaged or there, and a create-only
put says whose bytes stand (rule 3 of docs/architecture.md). Credentials, region and endpoint
come from boto3, so this works wherever boto3 does: SageMaker's container credentials, SSO,
a profile, or AWS_ENDPOINT_URL_S3 pointing at an emulator.
"""

import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final, NoReturn
from urllib.parse import urlsplit

import boto3
import obstore
from botocore.exceptions import BotoCoreError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, MemoryStore, S3Store

from trainer.rendezvous.errors import AbsentObject, AccessDenied, DamagedObject, StoreFailed

Store = S3Store | LocalStore | MemoryStore
Buffer = bytes | bytearray | memoryview
# What an identity needs to be allowed. S3 asks for the same right to look at an object as to read it.
_ACTIONS: Final = {
    "GET": "s3:GetObject",
    "HEAD": "s3:GetObject",
    "PUT": "s3:PutObject",
    "LIST": "s3:ListBucket",
}

PART_BYTES: Final = 16 * 2**20  # one request of a large object; 10,000 parts (S3) reach 156 GiB
REQUEST_TIMEOUT_S: Final = 120  # obstore's default of 30 s is short for a part on a slow link
# How long one request is retried, and how long a create-only put is put again, before StoreFailed.
REQUEST_RETRY_S: Final = 60.0
RETRY_S: Final = 120.0


class ObjectStore:
    """Objects by key below one root. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        uri: str,
        *,
        retry_s: float = RETRY_S,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self.uri = uri.rstrip("/")
        self._retry_s = retry_s
        self._now = now
        self._sleep = sleep

    def get(self, key: str) -> bytes:
        """The whole object. Raises AbsentObject, AccessDenied or StoreFailed."""
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except (BaseError, OSError) as error:
            self._refuse(error, "GET", key)

    def find(self, key: str) -> bytes | None:
        """The whole object, or None where there is none."""
        try:
            return self.get(key)
        except AbsentObject:
            return None

    def read_range(self, key: str, offset: int, size: int) -> memoryview:
        """`size` bytes of the object from `offset` on. Raises DamagedObject where it is too short."""
        try:
            data = obstore.get_range(self._store, key, start=offset, length=size)
        except (BaseError, OSError) as error:
            if not isinstance(error, FileNotFoundError | PermissionDeniedError | UnauthenticatedError):
                self._check_size(key, offset + size)
            if "416 Range Not Satisfiable" in str(error):  # it is long enough now, so this answer was damaged
                raise DamagedObject(
                    f"{self.address(key)}: answered as if it ended before {offset}"
                ) from error
            self._refuse(error, "GET", key)
        if len(data) != size:  # a range across the end is answered with what there is
            raise DamagedObject(self._short(key, offset + len(data), offset + size))
        return memoryview(data)

    def put(self, key: str, data: Buffer) -> None:
        """Write an object, in parts where it is large. On return it is durable and readable."""
        if isinstance(self._store, MemoryStore):
            data = bytes(data)  # it would keep the caller's buffer, which may change
        try:
            obstore.put(self._store, key, memoryview(data), chunk_size=PART_BYTES)
        except (BaseError, OSError) as error:
            self._refuse(error, "PUT", key)

    def put_stream(self, key: str, parts: Iterator[bytes | memoryview]) -> None:
        """As `put`, from an iterator that is asked for more while earlier parts are on their way."""
        try:
            obstore.put(self._store, key, parts, chunk_size=PART_BYTES)
        except (BaseError, OSError) as error:
            self._refuse(error, "PUT", key)

    def create(self, key: str, data: bytes) -> bytes:
        """Write an object unless there is one; return the bytes that stand under the key, whoever wrote them.

        A create-only put has answers that leave its outcome open: 412 may be our own retry meeting
        what it wrote, S3's 409 says "try again" though obstore reports it as a conflict, a time-out
        may have landed. So whatever the answer but success: look. Something is there: that stands.
        Nothing is there: put the same again. Raises AccessDenied at once, StoreFailed after a while.
        """
        deadline = self._now() + self._retry_s
        pause_s = 0.05
        while True:
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
                return data
            except (PermissionDeniedError, UnauthenticatedError, PermissionError, FileNotFoundError) as error:
                self._refuse(error, "PUT", key)
            except (AlreadyExistsError, PreconditionError, BaseError, OSError) as error:
                standing = self.find(key)
                if standing is not None:
                    return standing
                if self._now() >= deadline:
                    self._refuse(error, "PUT", key)
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)

    def names(self, prefix: str) -> list[str]:
        """Last parts of the keys directly below `prefix`, objects and folders, sorted."""
        try:
            found = obstore.list_with_delimiter(self._store, prefix)
        except (BaseError, OSError) as error:
            self._refuse(error, "LIST", prefix)
        keys = [entry["path"] for entry in found["objects"]] + list(found["common_prefixes"])
        return sorted(key.rsplit("/", 1)[-1] for key in keys)

    def keys(self, prefix: str) -> list[str]:
        """Every key below `prefix`, sorted."""
        try:
            return sorted(entry["path"] for batch in obstore.list(self._store, prefix) for entry in batch)
        except (BaseError, OSError) as error:
            self._refuse(error, "LIST", prefix)

    def address(self, key: str) -> str:
        """The key as a URI that a person can open."""
        return f"{self.uri}/{key}"

    def _check_size(self, key: str, needed: int) -> None:
        """Tell a truncated object from a failing store: a range past the end is an error like any other."""
        try:
            size = obstore.head(self._store, key)["size"]
        except (BaseError, OSError) as error:
            self._refuse(error, "HEAD", key)
        if size < needed:
            raise DamagedObject(self._short(key, size, needed))

    def _short(self, key: str, size: int, needed: int) -> str:
        return f"{self.address(key)} ends at byte {size}, but its manifest needs {needed}: it was truncated"

    def _refuse(self, error: BaseException, verb: str, key: str) -> NoReturn:
        address = self.address(key)
        reason = " ".join(str(error).split("\n\nDebug source:")[0].split())[:300]
        if isinstance(error, FileNotFoundError):
            if verb == "PUT":  # a put needs no object, so what is missing is the bucket
                raise AbsentObject(f"{address}: the bucket or folder does not exist ({reason})") from error
            raise AbsentObject(f"{address}: no such object") from error
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
        if denied or "status code: 403" in reason:  # of a LIST, obstore reports nothing but the text
            raise AccessDenied(
                f"{verb} {address} was denied: allow this identity {_ACTIONS[verb]} on that prefix ({reason})"
            ) from error
        raise StoreFailed(f"{verb} {address} failed: {reason}") from error


def open_store(uri: str) -> ObjectStore:
    """The store behind `s3://bucket`, `file:///folder` or `memory://`. Makes a missing folder.

    Raises ValueError for another scheme, AccessDenied where boto3 finds no credentials.
    """
    parts = urlsplit(uri)
    if parts.scheme == "s3" and parts.netloc and parts.path in ("", "/"):
        return ObjectStore(_s3_store(parts.netloc), uri)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return ObjectStore(LocalStore(parts.path, mkdir=True), uri)
    if parts.scheme == "memory":
        return ObjectStore(MemoryStore(), "memory://store")
    raise ValueError(f"store {uri!r}: must be s3://BUCKET, file:///FOLDER or memory://")


def _s3_store(bucket: str) -> S3Store:
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
