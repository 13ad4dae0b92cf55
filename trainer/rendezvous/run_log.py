"""The write-once log of a run: claims, rosters, the abort marker, results.

Everything here is a create-only put followed by looking at what stands, so that any number of
processes, restarted at any moment, read the same history (rules 1 to 4).
"""

import json
import uuid
from collections.abc import Sequence
from typing import Any

from trainer.layout import RunLayout
from trainer.rendezvous.documents import Contribution, MeanSlice, Roster, digest
from trainer.rendezvous.errors import DamagedObject, ForeignObject
from trainer.rendezvous.object_store import ObjectStore

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
        return self._checked_contribution(standing, ours.round, ours.rank)

    def contributions(self, round_index: int, ranks: Sequence[int]) -> Contributions:
        """The contributions to a round of those among `ranks` whose are there."""
        found = self.store.find_all([self.keys.contribution(round_index, rank) for rank in ranks])
        return {
            rank: (self._checked_contribution(data, round_index, rank), digest(data))
            for rank, data in zip(ranks, found, strict=True)
            if data is not None
        }

    def roster(self, round_index: int) -> Roster | None:
        """The round's roster, or None while the round isn't committed."""
        data = self.store.find(self.keys.roster(round_index))
        return None if data is None else self._checked_roster(data, round_index)

    def commit(self, ours: Roster) -> Roster:
        """Commit a round; the first roster stands, whoever wrote it, and is returned."""
        standing = self.store.create(self.keys.roster(ours.round), ours.encode())
        return self._checked_roster(standing, ours.round)

    def mean_slices(self, roster: Roster, indices: Sequence[int]) -> dict[int, MeanSlice]:
        """Those among the slices `indices` of the round's mean that somebody has announced."""
        keys = [self.keys.mean(roster.round, index) for index in indices]
        found = {}
        for index, key, data in zip(indices, keys, self.store.find_all(keys), strict=True):
            if data is not None:
                found[index] = MeanSlice.decode(data, self.store.address(key))
                found[index].check_is(
                    self.store.address(key), run_id=self.run_id, round=roster.round, slice=index
                )
        return found

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
        document = read_json(data, self.store.address(self.keys.abort))
        return f"{document.get('by', 'somebody')}: {document.get('reason', 'no reason given')}"

    def publish_result(self, rank: int, result: dict[str, Any]) -> dict[str, Any]:
        """Say how a rank ended. A relaunched process that ends again finds its first word standing."""
        key = self.keys.result(rank)
        standing = self.store.create(key, json.dumps(result, sort_keys=True).encode())
        return read_json(standing, self.store.address(key))

    def _checked_contribution(self, data: bytes, round_index: int, rank: int) -> Contribution:
        address = self.store.address(self.keys.contribution(round_index, rank))
        found = Contribution.decode(data, address)
        found.check_is(address, run_id=self.run_id, round=round_index, rank=rank)
        return found

    def _checked_roster(self, data: bytes, round_index: int) -> Roster:
        address = self.store.address(self.keys.roster(round_index))
        roster = Roster.decode(data, address)
        roster.check_is(address, run_id=self.run_id, round=round_index)
        return roster


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
