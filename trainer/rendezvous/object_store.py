"""A bucket, or a folder that stands for one, with answers that leave no doubt.

A thin layer over obstore, which speaks `s3://`, `file://` and memory alike. What it adds is
the meaning of an answer: an object is absent, denied, damaged or there, and a create-only
put says whose bytes stand (rule 3 of docs/architecture.md).
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NoReturn, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, MemoryStore, S3Store

from trainer.rendezvous.errors import AbsentObject, AccessDenied, DamagedObject, StoreFailed
from trainer.rendezvous.s3_store import s3_store

Store = S3Store | LocalStore | MemoryStore
Buffer = bytes | bytearray | memoryview
Answer = TypeVar("Answer")
# What an identity needs to be allowed. S3 asks for the same right to look at an object as to read it.
_ACTIONS: Final = {
    "GET": "s3:GetObject",
    "HEAD": "s3:GetObject",
    "PUT": "s3:PutObject",
    "LIST": "s3:ListBucket",
}

# What obstore says of an answer that makes the object shorter than another one did; and, besides, of a
# listing that breaks off midway, which it doesn't ask for again.
_SEEMS_SHORTER: Final = re.compile(r"status code: 416|Requested \d+\.\.\d+, got ")
_BROKEN_OFF: Final = re.compile(f"{_SEEMS_SHORTER.pattern}|response body")

PART_BYTES: Final = 16 * 2**20  # one request of a large object, as long as MOST_PARTS of them suffice
MOST_PARTS: Final = 10_000  # of one object (S3 multipart limits); beyond 156 GiB parts grow instead
RETRY_S: Final = 120.0  # how long a create-only put is put again, and a broken answer asked for, at most


def part_bytes(size_bytes: int) -> int:
    """The size of the parts in which an object of `size_bytes` is put."""
    return max(PART_BYTES, -(-size_bytes // MOST_PARTS))


class ObjectStore:
    """Objects by key below one root. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        uri: str,
        *,
        retry_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._store = store
        self.uri = uri.rstrip("/")
        self._retry_s = RETRY_S if retry_s is None else retry_s
        self._now = now
        self._sleep = sleep
        self._jitter = jitter

    def get(self, key: str) -> bytes:
        """The whole object. Raises AbsentObject, AccessDenied or StoreFailed."""
        return self._answer("GET", key, lambda: bytes(obstore.get(self._store, key).bytes()))

    def find(self, key: str) -> bytes | None:
        """The whole object, or None where there is none."""
        try:
            return self.get(key)
        except AbsentObject:
            return None

    def find_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """As `find` of each key, all asked for at once: small documents cost a round trip each."""

        async def find(key: str) -> bytes | None:
            try:
                return bytes(await (await obstore.get_async(self._store, key)).bytes_async())
            except FileNotFoundError:
                return None
            except (BaseError, OSError) as error:
                if not _BROKEN_OFF.search(str(error)):
                    self._refuse(error, "GET", key)
            return await asyncio.to_thread(self.find, key)

        async def find_each() -> list[bytes | None]:
            return await asyncio.gather(*(find(key) for key in keys))

        return asyncio.run(find_each())

    def read_range(self, key: str, offset: int, size: int) -> memoryview:
        """`size` bytes of the object from `offset` on. Raises DamagedObject where it is too short."""
        try:
            data = obstore.get_range(self._store, key, start=offset, length=size)
        except (BaseError, OSError) as error:
            if not isinstance(error, FileNotFoundError | PermissionDeniedError | UnauthenticatedError):
                self._check_size(key, offset + size)
                if _SEEMS_SHORTER.search(str(error)):
                    raise DamagedObject(
                        f"{self.address(key)} was answered as if it ended before byte {offset + size}"
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
            obstore.put(self._store, key, memoryview(data), chunk_size=part_bytes(len(data)))
        except (BaseError, OSError) as error:
            self._unless_completed(error, key, len(data))

    def put_stream(self, key: str, pieces: Iterable[bytes | memoryview], size_bytes: int) -> None:
        """As `put`, from an iterator that is asked for more while earlier pieces are on their way.

        An error of the iterator ends the upload, and leaves no object. `size_bytes` is the length of all
        pieces together, or more.
        """
        given_bytes = 0

        def counted() -> Iterator[bytes | memoryview]:
            nonlocal given_bytes
            for piece in pieces:
                given_bytes += len(piece)
                yield piece

        try:
            obstore.put(self._store, key, counted(), chunk_size=part_bytes(size_bytes))
        except (BaseError, OSError) as error:
            self._unless_completed(error, key, given_bytes)

    def create(self, key: str, data: bytes) -> bytes:
        """Write an object unless there is one; return the bytes that stand under the key, whoever wrote them.

        A create-only put has answers that leave its outcome open: 412 may be our own retry meeting
        what it wrote, S3's 409 says "try again" though obstore reports it as a conflict, a time-out
        may have landed. So whatever the answer but success: look. Something is there: that stands.
        Nothing is there: put the same again. Raises AccessDenied at once, StoreFailed after a while.
        """
        deadline = self._now() + self._retry_s
        attempt = 0
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
            attempt += 1
            self._pause(attempt)

    def names(self, prefix: str) -> list[str]:
        """Last parts of the keys directly below `prefix`, objects and folders, sorted."""
        found = self._answer("LIST", prefix, lambda: obstore.list_with_delimiter(self._store, prefix))
        keys = [entry["path"] for entry in found["objects"]] + list(found["common_prefixes"])
        return sorted(key.rsplit("/", 1)[-1] for key in keys)

    def keys(self, prefix: str) -> list[str]:
        """Every key below `prefix`, sorted."""
        return self._answer(
            "LIST",
            prefix,
            lambda: sorted(entry["path"] for batch in obstore.list(self._store, prefix) for entry in batch),
        )

    def address(self, key: str) -> str:
        """The key as a URI that a person can open."""
        return f"{self.uri}/{key}"

    def _answer(self, verb: str, key: str, look: Callable[[], Answer]) -> Answer:
        """What `look` answers. obstore tries again itself, but for bodies that it can't go on with."""
        deadline = self._now() + self._retry_s
        attempt = 0
        while True:
            try:
                return look()
            except (BaseError, OSError) as error:
                if not _BROKEN_OFF.search(str(error)) or self._now() >= deadline:
                    self._refuse(error, verb, key)
            attempt += 1
            self._pause(attempt)

    def _pause(self, attempt: int) -> None:
        """After the n-th attempt: longer each time, and of no fixed length, lest writers collide in step."""
        longest_s = min(0.025 * 2**attempt, 5.0)
        self._sleep(self._jitter(longest_s / 2, longest_s))

    def _unless_completed(self, error: BaseException, key: str, size: int) -> None:
        """Refuse a failed put, but for one whose last answer was lost.

        The retry of a completion that has succeeded may meet NoSuchUpload: S3 promises no memory of it.
        """
        if "NoSuchUpload" not in str(error):
            self._refuse(error, "PUT", key)
        try:
            landed = obstore.head(self._store, key)["size"] == size
        except (BaseError, OSError):
            landed = False
        if not landed:
            raise StoreFailed(f"PUT {self.address(key)} failed: its upload was ended by others") from error

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
        return ObjectStore(s3_store(parts.netloc), uri)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return ObjectStore(LocalStore(parts.path, mkdir=True), uri)
    if parts.scheme == "memory":
        return ObjectStore(MemoryStore(), "memory://store")
    raise ValueError(f"store {uri!r}: must be s3://BUCKET, file:///FOLDER or memory://")
