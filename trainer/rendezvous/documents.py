"""The JSON objects of the log, typed: contribution, roster, initial weights.

All are written once and refer to each other by digest, so the log proves itself: a roster
names the exact manifests whose mean is the round, each manifest names the exact bytes. Each holds
a checksum of itself, so that one damaged on its way is told from one that was never ours.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from trainer.rendezvous.errors import DamagedObject, ForeignObject
from trainer.rendezvous.payload import Payload, crc64nvme


def digest(data: bytes) -> str:
    """The name of a document's exact bytes, by which other documents refer to it."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Document:
    """What all documents of a run have in common."""

    run_id: str

    def encode(self) -> bytes:
        body = asdict(self)
        return _canonical({**body, "crc64nvme": crc64nvme(memoryview(_canonical(body)))})

    @classmethod
    def decode(cls, data: bytes, address: str) -> Self:
        """Parse, check types and checksum. Raises DamagedObject naming the document's address."""
        try:
            found = TypeAdapter(cls).validate_json(data)
            body = json.loads(data)
            if body.pop("crc64nvme", None) != crc64nvme(memoryview(_canonical(body))):
                raise DamagedObject(f"{address} is not what its own checksum says: it was damaged")
            return found
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise DamagedObject(
                f"{address} is not a whole {cls.__name__}: {field or 'the text'}: {first['msg']}"
            ) from error

    def check_is(self, address: str, **expected: Any) -> None:
        """Raise ForeignObject where a field differs from what its place in the log promises."""
        for name, value in expected.items():
            if getattr(self, name) != value:
                raise ForeignObject(
                    f"{address}: its {name} is {getattr(self, name)!r} where {value!r} belongs; another run, "
                    "another model or another version of the trainer wrote it"
                )


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


@dataclass(frozen=True)
class Contribution(Document):
    """One rank's pseudo-gradient for one round.

    `dtype` is the wire format, `shape` that of the values in it. `layout_hash` names the parameters
    packed in it, in order; `base_hash` the shared state it was computed from (rule 9). A replica of
    several processes is one member, each of its local ranks a shard.
    """

    round: int
    fragment: int
    rank: int
    claim: int
    local_rank: int
    local_world_size: int
    dtype: str
    shape: tuple[int, ...]
    layout_hash: str
    base_hash: str
    payload: Payload


@dataclass(frozen=True)
class Member:
    """A rank of a roster and the exact contribution that counts."""

    rank: int
    claim: int
    contribution_sha256: str


@dataclass(frozen=True)
class Roster(Document):
    """The commit of a round: whose contributions its mean is made of, and what it is applied to."""

    round: int
    base_hash: str
    members: tuple[Member, ...]
    mean_dtype: str
    slice_owners: tuple[int, ...]  # the rank that averages each slice; empty where each averages the whole

    @property
    def digest(self) -> str:
        return digest(self.encode())


@dataclass(frozen=True)
class MeanSlice(Document):
    """A part of a round's mean, averaged by one rank for all."""

    round: int
    slice: int
    rank: int
    claim: int
    roster_sha256: str
    dtype: str
    payload: Payload


@dataclass(frozen=True)
class Source:
    """Which state of which run: after so many rounds, with the hash of its shared weights."""

    run_id: str
    round: int
    weights_hash: str


@dataclass(frozen=True)
class InitialWeights(Document):
    """The weights every replica starts from: random ones differ between processors.

    `source` says where they come from, if from an earlier run. The last shared weights of a run that
    has finished are described in the same form.
    """

    rank: int
    claim: int
    payload: Payload
    source: Source | None = None
