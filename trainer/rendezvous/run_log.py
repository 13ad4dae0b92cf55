"""The write-once log of a run: claims, rosters, the abort marker, results.

Everything here is a create-only put followed by looking at what stands, so that any number of
processes, restarted at any moment, read the same history (rules 1 to 4).
"""

import json
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from trainer.layout import RunLayout
from trainer.rendezvous.documents import Contribution, MeanSlice, Roster, digest
from trainer.rendezvous.errors import DamagedObject, ForeignObject
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.payload import FETCH_ATTEMPTS

T = TypeVar("T")


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

    def is_superseded(self, rank: int, claim: int) -> bool:
        """Whether a later process has claimed `rank`. Claims have no gaps, so one look is enough."""
        return self.store.find(self.keys.claim(rank, claim + 1)) is not None

    # Rounds

    def contribute(self, ours: Contribution) -> Contribution:
        """Write a contribution; the first of its rank stands, whoever wrote it, and is returned."""
        standing = self.store.create(self.keys.contribution(ours.round, ours.rank), ours.encode())
        return self._checked_contribution(standing, ours.round, ours.rank)[0]

    def contribution(self, round_index: int, rank: int) -> tuple[Contribution, str] | None:
        """A rank's contribution to a round and its digest, or None where it isn't there yet."""
        data = self.store.find(self.keys.contribution(round_index, rank))
        return None if data is None else self._checked_contribution(data, round_index, rank)

    def roster(self, round_index: int) -> Roster | None:
        """The round's roster, or None while the round isn't committed."""
        data = self.store.find(self.keys.roster(round_index))
        return None if data is None else self._checked_roster(data, round_index)

    def commit(self, ours: Roster) -> Roster:
        """Commit a round; the first roster stands, whoever wrote it, and is returned."""
        standing = self.store.create(self.keys.roster(ours.round), ours.encode())
        return self._checked_roster(standing, ours.round)

    def mean_slice(self, roster: Roster, index: int) -> MeanSlice | None:
        """A slice of the round's mean, or None where nobody has announced it yet."""
        key = self.keys.mean(roster.round, index)
        data = self.store.find(key)
        if data is None:
            return None
        found, _ = read_whole(self.store, key, data, MeanSlice.decode)
        found.check_is(self.store.address(key), run_id=self.run_id, round=roster.round, slice=index)
        return found

    def announce_slice(self, ours: MeanSlice) -> None:
        """Announce a slice. Another's announcement may stand: the bits behind it are the same."""
        self.store.create(self.keys.mean(ours.round, ours.slice), ours.encode())

    def members_of(self, roster: Roster) -> list[Contribution]:
        """The roster's contributions in rank order, each proved to be the one the roster means."""
        found = []
        for member in roster.members:
            address = self.store.address(self.keys.contribution(roster.round, member.rank))
            entry = self.contribution(roster.round, member.rank)
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
        data = self.store.find(self.keys.abort)
        if data is None:
            return None
        document, _ = read_whole(self.store, self.keys.abort, data, read_json)
        return f"{document.get('by', 'somebody')}: {document.get('reason', 'no reason given')}"

    def publish_result(self, rank: int, result: dict[str, Any]) -> dict[str, Any]:
        """Say how a rank ended. A relaunched process that ends again finds its first word standing."""
        key = self.keys.result(rank)
        standing = self.store.create(key, json.dumps(result, sort_keys=True).encode())
        return read_whole(self.store, key, standing, read_json)[0]

    def _checked_contribution(self, data: bytes, round_index: int, rank: int) -> tuple[Contribution, str]:
        key = self.keys.contribution(round_index, rank)
        found, data = read_whole(self.store, key, data, Contribution.decode)
        found.check_is(self.store.address(key), run_id=self.run_id, round=round_index, rank=rank)
        return found, digest(data)

    def _checked_roster(self, data: bytes, round_index: int) -> Roster:
        key = self.keys.roster(round_index)
        roster, _ = read_whole(self.store, key, data, Roster.decode)
        roster.check_is(self.store.address(key), run_id=self.run_id, round=round_index)
        return roster


def read_whole(
    store: ObjectStore, key: str, data: bytes, decode: Callable[[bytes, str], T]
) -> tuple[T, bytes]:
    """`data`, the object under `key`, decoded, and its bytes; fetched again where it was damaged on its way.

    Raises DamagedObject where it never comes whole, and what `decode` raises otherwise.
    """
    for _ in range(FETCH_ATTEMPTS - 1):
        try:
            return decode(data, store.address(key)), data
        except DamagedObject:
            data = store.get(key)
    return decode(data, store.address(key)), data


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
