"""The write-once log of a run: claims, rosters, the abort marker, results.

Everything here is a create-only put followed by looking at what stands, so that any number of
processes, restarted at any moment, read the same history (rules 1 to 4).
"""

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from trainer.layout import RunLayout
from trainer.rendezvous.documents import Contribution, MeanSlice, Roster, digest
from trainer.rendezvous.errors import DamagedObject, ForeignObject
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.payload import FETCH_ATTEMPTS

Found = TypeVar("Found")

Contributions = dict[int, tuple[Contribution, str]]  # by rank: the contribution and its digest


class RunLog:
    """One run's log in one store."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self.keys = RunLayout(run_id)

    # Claims: who may speak for a rank

    def take_claim(self, rank: int, **about: object) -> int:
        """Claim `rank` for this process and return the claim's number, from 0.

        The nonce tells our own claim from another's when the put's answer was lost.
        """
        nonce = uuid.uuid4().hex
        body = json.dumps({"run_id": self.run_id, "rank": rank, "nonce": nonce, **about}).encode()
        prefix = f"rank_{rank:04d}."
        taken = self.store.names(self.keys.claims_prefix)
        claim = 1 + max((int(name.split(".")[1]) for name in taken if name.startswith(prefix)), default=-1)
        while self.store.create(self.keys.claim(rank, claim), body) != body:
            claim += 1
        return claim

    # Rounds

    def contribute(self, ours: Contribution) -> Contribution:
        """Write a contribution; the first of its rank stands, whoever wrote it, and is returned."""
        standing = self.store.create(self.keys.contribution(ours.round, ours.rank), ours.encode())
        return self._contribution(ours.round, ours.rank, standing)[0]

    def contributions(self, round_index: int, ranks: Sequence[int]) -> Contributions:
        """The contributions to a round of those among `ranks` whose are there."""
        found = self.store.find_all([self.keys.contribution(round_index, rank) for rank in ranks])
        return {
            rank: self._contribution(round_index, rank, data)
            for rank, data in zip(ranks, found, strict=True)
            if data is not None
        }

    def roster(self, round_index: int) -> Roster | None:
        """The round's roster, or None while the round isn't committed."""
        data = self.store.find(self.keys.roster(round_index))
        return None if data is None else self._roster(round_index, data)

    def commit(self, ours: Roster) -> Roster:
        """Commit a round; the first roster stands, whoever wrote it, and is returned."""
        standing = self.store.create(self.keys.roster(ours.round), ours.encode())
        return self._roster(ours.round, standing)

    def mean_slices(self, roster: Roster, indices: Sequence[int]) -> dict[int, MeanSlice]:
        """Those among the slices `indices` of the round's mean that somebody has announced."""
        keys = [self.keys.mean(roster.round, index) for index in indices]
        found = zip(indices, keys, self.store.find_all(keys), strict=True)
        return {
            index: self._slice(roster, index, key, data) for index, key, data in found if data is not None
        }

    def announce_slice(self, ours: MeanSlice) -> None:
        """Announce a slice. Another's announcement may stand: the bits behind it are the same."""
        self.store.create(self.keys.mean(ours.round, ours.slice), ours.encode())

    def members_of(self, roster: Roster, known: Contributions | None = None) -> list[Contribution]:
        """The roster's contributions in rank order, each proved to be the one the roster means.

        `known` are contributions that need no second reading.
        """
        read = dict(known or {})
        read |= self.contributions(roster.round, [m.rank for m in roster.members if m.rank not in read])
        found = []
        for member in roster.members:
            address = self.store.address(self.keys.contribution(roster.round, member.rank))
            entry = read.get(member.rank)
            if entry is None or entry[1] != member.contribution_sha256:
                raise ForeignObject(
                    f"round {roster.round} rank {member.rank}: {address} is not the contribution that the "
                    "round's roster names; the log was changed after it was written. Start a new run."
                )
            found.append(entry[0])
        return found

    # The end of a run, good or bad

    def abort(self, *, by: str, reason: str, round_index: int | None, missing: list[int]) -> None:
        """Give the run up. The first marker stands; there is no taking back."""
        document = {
            "run_id": self.run_id,
            "by": by,
            "reason": reason,
            "round": round_index,
            "missing": missing,
        }
        self.store.create(self.keys.abort, json.dumps(document).encode())

    def abort_reason(self) -> str | None:
        """Why the run was given up, or None while it wasn't."""
        return self._abort_reason(self.store.find(self.keys.abort))

    def abort_and_successor(self, rank: int, claim: int) -> tuple[str | None, bool]:
        """Why the run was given up, if it was, and whether a later process has claimed `rank`.

        Claims have no gaps, so one look is enough.
        """
        abort, successor = self.store.find_all([self.keys.abort, self.keys.claim(rank, claim + 1)])
        return self._abort_reason(abort), successor is not None

    def _abort_reason(self, data: bytes | None) -> str | None:
        if data is None:
            return None
        document = self.proved(self.keys.abort, data, read_json, "abort marker")
        return f"{document.get('by', 'somebody')}: {document.get('reason', 'no reason given')}"

    def publish_result(self, rank: int, result: dict[str, Any]) -> dict[str, Any]:
        """Say how a rank ended. A relaunched process that ends again finds its first word standing."""
        key = self.keys.result(rank)
        standing = self.store.create(key, json.dumps(result, sort_keys=True).encode())
        return self.proved(key, standing, read_json, f"result of rank {rank}")

    def proved(self, key: str, data: bytes, decode: Callable[[bytes, str], Found], where: str) -> Found:
        """The document in `data`, as read from `key`; read again where it is damaged or belongs elsewhere.

        In flight that heals, at rest it never does: raises DamagedObject, ForeignObject or AbsentObject.
        """
        address = self.store.address(key)
        for attempt in range(1, FETCH_ATTEMPTS + 1):
            try:
                return decode(data, address)
            except (DamagedObject, ForeignObject) as error:
                if attempt == FETCH_ATTEMPTS:
                    raise type(error)(f"{where}: {error}; fetched {attempt} times") from error
            data = self.store.get(key)
        raise AssertionError("the last attempt returns or raises")

    def _contribution(self, round_index: int, rank: int, data: bytes) -> tuple[Contribution, str]:
        def decode(data: bytes, address: str) -> tuple[Contribution, str]:
            found = Contribution.decode(data, address)
            found.check_is(address, run_id=self.run_id, round=round_index, rank=rank)
            return found, digest(data)

        key = self.keys.contribution(round_index, rank)
        return self.proved(key, data, decode, f"round {round_index} rank {rank}")

    def _slice(self, roster: Roster, index: int, key: str, data: bytes) -> MeanSlice:
        def decode(data: bytes, address: str) -> MeanSlice:
            found = MeanSlice.decode(data, address)
            expected = {"run_id": self.run_id, "round": roster.round, "slice": index}
            found.check_is(address, **expected, roster_sha256=roster.digest)
            return found

        return self.proved(key, data, decode, f"round {roster.round} slice {index}")

    def _roster(self, round_index: int, data: bytes) -> Roster:
        def decode(data: bytes, address: str) -> Roster:
            roster = Roster.decode(data, address)
            roster.check_is(address, run_id=self.run_id, round=round_index)
            return roster

        return self.proved(self.keys.roster(round_index), data, decode, f"round {round_index} roster")


def read_json(data: bytes, address: str) -> dict[str, Any]:
    """Parse a JSON object, plain or as a quoted string. Raises DamagedObject naming its address."""
    try:
        document = json.loads(data)
        if isinstance(document, str):
            document = json.loads(document)
    except ValueError as error:
        raise DamagedObject(f"{address} holds no JSON: {error}") from error
    if not isinstance(document, dict):
        raise DamagedObject(f"{address} holds no JSON object")
    return document
