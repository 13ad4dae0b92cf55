"""Raw bytes in the store, and the proof that the bytes fetched are the bytes put.

A payload is described by its key, its length and a checksum for each chunk. S3 clients verify
no ranged read, so a bit flipped in flight passes through all of them in silence. The checksum
is CRC-64/NVME, S3's own default for new objects (Amazon S3 User Guide, "Checking object
integrity"). It guards against damage, not against an adversary, who could write the
description too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from awscrt import checksums

from trainer.rendezvous.errors import AbsentObject, DamagedObject
from trainer.rendezvous.object_store import ObjectStore

# What is fetched, checked and summed at a time. A multiple of four, so of every float32.
CHUNK_BYTES: Final = 16 * 2**20
FETCH_ATTEMPTS: Final = 3  # damage in flight heals on the next try, damage at rest never does


@dataclass(frozen=True)
class Payload:
    """An immutable object of raw bytes, as its manifest describes it."""

    key: str
    size_bytes: int
    chunk_bytes: int
    chunk_crc64nvme: tuple[str, ...]  # hexadecimal: a JSON number is exact to 53 bits only

    @classmethod
    def put(cls, store: ObjectStore, key: str, data: memoryview, chunk_bytes: int) -> "Payload":
        """Store the bytes under a key nobody else ever uses; on return they are durable."""
        store.put(key, data)
        crcs = tuple(_crc64nvme(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes))
        return cls(key, len(data), chunk_bytes, crcs)

    def fetch_chunk(self, store: ObjectStore, index: int, where: str) -> bytearray:
        """One verified chunk. `where` names rank and round for the error.

        Truncated or damaged bytes are fetched again; then DamagedObject names the key. A payload
        that is gone though its manifest stands raises AbsentObject.
        """
        start = index * self.chunk_bytes
        out = bytearray(min(self.chunk_bytes, self.size_bytes - start))
        reason = ""
        for _ in range(FETCH_ATTEMPTS):
            try:
                store.read_into(self.key, start, memoryview(out))
            except DamagedObject as error:
                reason = str(error)
                continue
            except AbsentObject as error:
                raise AbsentObject(
                    f"{where}: {store.address(self.key)} is gone though its manifest stands; it may have "
                    "expired, and a round can't be rebuilt without it. Start a new run."
                ) from error
            found = _crc64nvme(memoryview(out))
            if found == self.chunk_crc64nvme[index]:
                return out
            reason = f"the bytes from {start} have CRC-64/NVME {found}, not {self.chunk_crc64nvme[index]}"
        raise DamagedObject(
            f"{where}: {store.address(self.key)} is damaged, fetched {FETCH_ATTEMPTS} times: {reason}"
        )

    def fetch(self, store: ObjectStore, where: str) -> Iterator[bytearray]:
        """All verified chunks in order."""
        for index in range(len(self.chunk_crc64nvme)):
            yield self.fetch_chunk(store, index, where)


def _crc64nvme(data: memoryview) -> str:
    return f"{checksums.crc64nvme(data):016x}"
