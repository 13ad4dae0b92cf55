"""Held-out loss of the shared weights, each rank evaluating its share of the held-out sequences.

All ranks hold the same shared weights after the same round, so a share may be evaluated anywhere.
A rank writes what its share came to into the run's log, create-only, and the loss is the mean over
all shares: the same number for everybody, at 1/N of the time.

While training goes on nobody waits: rank 0 reports a loss when the last share has come. At the
end every rank needs the loss; one that has waited TAKE_OVER_S evaluates what is missing itself.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.run_log import read_json

EVAL_BATCH: Final = 16
TAKE_OVER_S: Final = 60.0  # a share is a matter of seconds; a rank that is later was lost or is busy
POLL_S: Final = 0.2
SLOWEST_POLL_S: Final = 2.0


@dataclass(frozen=True)
class Share:
    """What one rank's part of the held-out sequences came to."""

    loss_sum: float  # nats per token, summed over sequences, which all have the same length
    sequences: int


@dataclass
class Evaluation:
    """One rank's end of the evaluations of a run. `held_out` has shape (sequences, ...)."""

    manager: ObjectStoreManager
    rank: int
    world_size: int
    held_out: torch.Tensor
    loss: Callable[[torch.Tensor], torch.Tensor]  # the mean loss of some rows of `held_out`
    _pending: list[int] = field(default_factory=list)

    def publish(self, rounds: int) -> None:
        """Evaluate this rank's share of the model as it is, which must hold the weights after `rounds`.

        Written before this returns; whatever an earlier life wrote stands.
        """
        if self._find(rounds, self.rank) is None:
            self._create(rounds, self.rank, self._evaluate(self.rank))

    def publish_later(self, rounds: int, then: Callable[[int, float], None]) -> None:
        """As `publish`, written off the training thread; `then(rounds, loss)`, there too, when all have.

        Only rank 0 collects. Call `look` now and then.
        """
        share = self._evaluate(self.rank)
        self.manager.later(lambda: self._create(rounds, self.rank, share))
        if self.rank == 0:
            self._pending.append(rounds)
            self.look(then)

    def look(self, then: Callable[[int, float], None]) -> None:
        """See, off the training thread, whether evaluations that were pending are complete."""
        if self._pending:
            self.manager.later(lambda: self._collect(then))

    def loss_after(self, rounds: int) -> float:
        """The loss of weights that everybody has published. Waits; takes late shares over.

        The model must hold the weights after `rounds`. Raises Stopped where this process was asked to.
        """
        clock, shares = self.manager.clock, dict[int, Share]()
        began_s, pause_s = clock.now(), POLL_S
        while True:
            missing = [rank for rank in range(self.world_size) if rank not in shares]
            shares |= {rank: s for rank in missing if (s := self._find(rounds, rank)) is not None}
            missing = [rank for rank in missing if rank not in shares]
            if not missing:
                return _mean(
                    [shares[rank] for rank in sorted(shares)]
                )  # in one order: the same sum everywhere
            self.manager.check_stop()
            if clock.now() - began_s >= TAKE_OVER_S:
                for rank in missing:
                    self._create(rounds, rank, self._evaluate(rank))
            else:
                clock.sleep(pause_s)
                pause_s = min(1.5 * pause_s, SLOWEST_POLL_S)

    def standing_loss(self, rounds: int) -> float:
        """The loss after `rounds` over the shares that stand; not a number where there are none."""
        found = [s for rank in range(self.world_size) if (s := self._find(rounds, rank)) is not None]
        return _mean(found)

    def has_share(self, rounds: int) -> bool:
        """Whether this rank has published its share, in this life or an earlier one."""
        return self._find(rounds, self.rank) is not None

    def _collect(self, then: Callable[[int, float], None]) -> None:
        for rounds in list(self._pending):
            shares = [self._find(rounds, rank) for rank in range(self.world_size)]
            found = [share for share in shares if share is not None]
            if len(found) == self.world_size:
                self._pending.remove(rounds)
                then(rounds, _mean(found))

    @torch.no_grad()
    def _evaluate(self, rank: int) -> Share:
        rows = self.held_out[rank :: self.world_size]  # strided: every share is like the whole
        total = 0.0
        for part in rows.split(EVAL_BATCH):
            if len(part):
                total += self.loss(part).item() * len(part)
        return Share(total, len(rows))

    def _create(self, rounds: int, rank: int, share: Share) -> None:
        log = self.manager.log
        body = {"run_id": log.run_id, "rounds": rounds, "rank": rank, "by": self.rank, **vars(share)}
        log.store.create(log.keys.evaluation(rounds, rank), json.dumps(body, sort_keys=True).encode())

    def _find(self, rounds: int, rank: int) -> Share | None:
        log = self.manager.log
        key = log.keys.evaluation(rounds, rank)
        data = log.store.find(key)
        if data is None:
            return None
        document = read_json(data, log.store.address(key))
        return Share(float(document["loss_sum"]), int(document["sequences"]))


def _mean(shares: Sequence[Share]) -> float:
    sequences = sum(share.sequences for share in shares)
    return sum(share.loss_sum for share in shares) / sequences if sequences else float("nan")
