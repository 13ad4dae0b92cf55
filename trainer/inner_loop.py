"""One replica's inner steps, its evaluations and what it reports, until the run's last round."""

import math
import time
from dataclasses import dataclass
from typing import Final

import torch
from transformers import PreTrainedModel

from trainer.data import Batches
from trainer.diloco import DiLoCoLoop
from trainer.inner_optimizer import learning_rate
from trainer.metrics import RoundMetrics
from trainer.model import BYTE_OFFSET
from trainer.rendezvous.errors import NonFinite
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.run_spec import RunSpec

EVAL_BATCH: Final = 16


@dataclass
class InnerLoop:
    """One replica's inner loop; a function of (parameters, rank, step) and the shared weights."""

    spec: RunSpec
    rank: int
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    batches: Batches
    held_out: torch.Tensor
    loop: DiLoCoLoop
    manager: ObjectStoreManager
    device: torch.device

    def train(self) -> float | None:
        """Run to the last inner step; the last held-out loss, or None where nothing was left to do."""
        metrics = RoundMetrics(self.manager, self.rank)
        per_round = self.spec.inner_steps_per_round
        tokens = per_round * self.spec.batch_size * self.spec.gradient_accumulation * self.spec.seq_len
        eval_loss: float | None = None
        with self.loop:
            while self.loop.rounds < self.spec.rounds:
                round_index = self.loop.rounds
                began_s = time.monotonic()
                first = round_index * per_round
                losses, norms = zip(
                    *(self._inner_step(s) for s in range(first, first + per_round)), strict=True
                )
                exchange = self.manager.last_round
                assert exchange is not None and exchange.round == round_index
                evaluated: dict[str, float] = {}
                last = self.loop.rounds == self.spec.rounds
                if last or self.loop.rounds % self.spec.eval_every_rounds == 0:
                    eval_loss = evaluated["eval_loss"] = self.evaluate()
                metrics.report(
                    round_index=round_index,
                    inner_step=first + per_round,
                    train_loss=sum(losses) / per_round,
                    **evaluated,
                    lr=learning_rate(self.spec, first + per_round - 1),
                    grad_norm=sum(norms) / per_round,
                    tokens_per_s=tokens / (time.monotonic() - began_s),
                    exchange_s=exchange.put_s + exchange.waited_s + exchange.fetched_s,
                    wait_s=exchange.waited_s,
                    sent_bytes=exchange.sent_bytes,
                    received_bytes=exchange.received_bytes,
                )
        return eval_loss

    def evaluate(self) -> float:
        """Held-out loss of the shared weights, nats per token."""
        self.model.eval()
        total = 0.0
        with self.loop.shared_weights(), torch.no_grad():
            for windows in self.held_out.split(EVAL_BATCH):
                total += self._loss(windows.long() + BYTE_OFFSET).item() * len(windows)
        self.model.train()
        return total / len(self.held_out)

    def _inner_step(self, step: int) -> tuple[float, float]:
        """One AdamW step, and with it whatever round is due; its mean loss and gradient norm."""
        self.manager.check_stop()
        accumulate = self.spec.gradient_accumulation
        mean_loss = 0.0
        self.optimizer.zero_grad()
        for _ in range(accumulate):
            loss = self._loss(self.batches.next_batch()) / accumulate
            loss.backward()
            mean_loss += loss.item()
        if not math.isfinite(mean_loss):
            raise NonFinite(
                f"rank {self.rank} round {self.loop.rounds} inner step {step}: the loss is {mean_loss}; "
                "nothing of it was sent. Lower lr or max_grad_norm, or look at the data of this rank."
            )
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.max_grad_norm).item()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.spec, step)
        self.optimizer.step()
        return mean_loss, norm

    def _loss(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens.to(self.device)
        # Parameters stay float32; on an accelerator the arithmetic is bfloat16.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type != "cpu"):
            loss: torch.Tensor = self.model(input_ids=tokens, labels=tokens).loss
        return loss
