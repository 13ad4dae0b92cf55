"""Raw bytes in the store, and the proof that the bytes fetched are the bytes put.

A payload is described by its key, its length and a checksum for each chunk. S3 clients verify
no ranged read, so a bit flipped in flight passes through all of them in silence. The checksum
is CRC-64/NVME, S3's own default for new objects (Amazon S3 User Guide, "Checking object
integrity"). It guards against damage, not against an adversary, who could write the
description too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from awscrt import checksums

from trainer.rendezvous.errors import AbsentObject, DamagedObject, ForeignObject
from trainer.rendezvous.object_store import PART_BYTES, ObjectStore

FETCH_ATTEMPTS: Final = 3  # damage in flight heals on the next try, damage at rest never does


@dataclass(frozen=True)
class Payload:
    """An immutable object of raw bytes, as its manifest describes it: equal chunks, the last one shorter."""

    key: str
    size_bytes: int
    chunk_bytes: int
    chunk_crc64nvme: tuple[str, ...]  # hexadecimal: a JSON number is exact to 53 bits only

    @classmethod
    def put(cls, store: ObjectStore, key: str, data: memoryview, chunk_bytes: int) -> "Payload":
        """Store the bytes under a key nobody else ever uses; on return they are durable."""
        store.put(key, data)
        starts = range(0, len(data), chunk_bytes)
        crcs = tuple(crc64nvme(data[start : start + chunk_bytes]) for start in starts)
        return cls(key, len(data), chunk_bytes, crcs)

    @classmethod
    def put_chunks(
        cls, store: ObjectStore, key: str, chunks: Iterable[bytes | memoryview], chunk_bytes: int, count: int
    ) -> "Payload":
        """As `put`, from `count` chunks made one by one while earlier ones are on their way."""
        crcs: list[str] = []
        size_bytes = 0

        def noted() -> Iterator[bytes | memoryview]:
            nonlocal size_bytes
            for chunk in chunks:
                crcs.append(crc64nvme(memoryview(chunk)))
                size_bytes += len(chunk)
                yield chunk

        if chunk_bytes >= PART_BYTES:
            store.put_stream(key, noted(), count * chunk_bytes)
        else:  # a single request, rather than a multipart upload of three
            store.put(key, b"".join(noted()))
        return cls(key, size_bytes, chunk_bytes, tuple(crcs))

    def fetch_chunk(self, store: ObjectStore, index: int, where: str) -> memoryview:
        """One verified chunk. `where` names rank and round for the error.

        Truncated or damaged bytes are fetched again; then DamagedObject names the key. A payload
        that is gone though its manifest stands raises AbsentObject.
        """
        start = index * self.chunk_bytes
        size = min(self.chunk_bytes, self.size_bytes - start)
        reason = ""
        for _ in range(FETCH_ATTEMPTS):
            try:
                data = store.read_range(self.key, start, size)
            except DamagedObject as error:
                reason = str(error)
                continue
            except AbsentObject as error:
                raise AbsentObject(
                    f"{where}: {store.address(self.key)} is gone though its manifest stands; it may have "
                    "expired, and a round can't be rebuilt without it. Start a new run."
                ) from error
            found = crc64nvme(data)
            if found == self.chunk_crc64nvme[index]:
                return data
            reason = f"the bytes from {start} have CRC-64/NVME {found}, not {self.chunk_crc64nvme[index]}"
        raise DamagedObject(
            f"{where}: {store.address(self.key)} is damaged, fetched {FETCH_ATTEMPTS} times: {reason}"
        )

    def check_size(self, address: str, size_bytes: int, chunk_bytes: int) -> None:
        """Raise ForeignObject where the payload isn't `size_bytes` in chunks of `chunk_bytes`."""
        expected = (size_bytes, chunk_bytes, -(-size_bytes // chunk_bytes))
        found = (self.size_bytes, self.chunk_bytes, len(self.chunk_crc64nvme))
        if found != expected:
            raise ForeignObject(
                f"{address}: its payload has (bytes, bytes a chunk, chunks) {found} where {expected} belongs"
            )

    def fetch(self, store: ObjectStore, where: str) -> Iterator[memoryview]:
        """All verified chunks in order."""
        for index in range(len(self.chunk_crc64nvme)):
            yield self.fetch_chunk(store, index, where)


def crc64nvme(data: memoryview) -> str:
    """CRC-64/NVME in hexadecimal."""
    return f"{checksums.crc64nvme(data):016x}"
