"""One replica's inner steps, its evaluations and what it reports, until the run's last round."""

import time
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from trainer.data import Batches
from trainer.diloco import DiLoCoLoop
from trainer.evaluation import Evaluation
from trainer.flops import flops_per_token, peak_flops
from trainer.inner_optimizer import learning_rate
from trainer.metrics import RoundMetrics
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.run_spec import RunSpec
from trainer.step_guard import StepGuard


@dataclass
class RoundSums:
    """What the inner steps of a round came to; skipped ones are in neither list."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

    def means(self) -> dict[str, float]:
        """Metrics; none where every step was skipped."""
        if not self.losses:
            return {}
        count = len(self.losses)
        return {"train_loss": sum(self.losses) / count, "grad_norm": sum(self.norms) / count}


@dataclass
class InnerLoop:
    """One replica's inner loop; a function of (parameters, rank, step) and the shared weights.

    `guard` and `optimizer` hold state that a checkpoint keeps.
    """

    spec: RunSpec
    rank: int
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    batches: Batches
    held_out: torch.Tensor
    loop: DiLoCoLoop
    manager: ObjectStoreManager
    device: torch.device
    metrics: RoundMetrics
    guard: StepGuard

    def __post_init__(self) -> None:
        self._evaluation = Evaluation(
            self.manager, self.rank, self.spec.n_replicas, self.held_out, self._held_out_loss
        )
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        peak = peak_flops(self.device)
        self._tokens_at_peak = None if peak is None else peak / flops_per_token(self.model, self.spec.seq_len)

    def train(self) -> tuple[float, float]:
        """Run to the last inner step; the held-out losses of the first and of the last shared weights."""
        first = 0 if self._evaluation.has_share(0) else self.loop.rounds
        with self.loop.shared_weights():
            self._evaluation.publish(first)
        with self.loop:
            while self.loop.rounds < self.spec.rounds:
                self._round(self.loop.rounds)
        last = self.spec.rounds
        with self.loop.shared_weights():
            self._evaluation.publish(last)
            last_loss = self._evaluation.loss_after(last)
        if self.rank == 0:
            self._report_evaluation(last, last_loss)
        self._evaluation.look(self._report_evaluation)
        self.metrics.close()
        return self._evaluation.standing_loss(first), last_loss

    def _round(self, round_index: int) -> None:
        """The inner steps of one round, and in the last of them its exchange; what it reports."""
        per_round = self.spec.inner_steps_per_round
        began_s = time.monotonic()
        sums = RoundSums()
        first = round_index * per_round
        for step in range(first, first + per_round):
            self._inner_step(step, sums)
        tokens = per_round * self.spec.batch_size * self.spec.gradient_accumulation * self.spec.seq_len
        speed = tokens / (time.monotonic() - began_s)
        exchange = self.manager.last_round
        assert exchange is not None and exchange.round == round_index
        self.metrics.report(
            round_index=round_index,
            inner_step=first + per_round,
            **sums.means(),
            lr=learning_rate(self.spec, first + per_round - 1),
            skipped_steps=self.guard.skipped,
            tokens_per_s=speed,
            **({} if self._tokens_at_peak is None else {"mfu": speed / self._tokens_at_peak}),
            exchange_s=exchange.put_s + exchange.waited_s + exchange.fetched_s,
            wait_s=exchange.waited_s,
            sent_bytes=exchange.sent_bytes,
            received_bytes=exchange.received_bytes,
            pseudo_gradient_norm=exchange.pseudo_gradient_norm,
            mean_cosine=exchange.mean_cosine,
        )
        rounds = self.loop.rounds
        if rounds % self.spec.eval_every_rounds == 0 and rounds < self.spec.rounds:
            with self.loop.shared_weights():
                self._evaluation.publish_later(rounds, self._report_evaluation)
        else:
            self._evaluation.look(self._report_evaluation)

    def _report_evaluation(self, rounds: int, loss: float) -> None:
        step = rounds * self.spec.inner_steps_per_round
        self.metrics.report(round_index=rounds - 1, inner_step=step, eval_loss=loss)

    def _inner_step(self, step: int, sums: RoundSums) -> None:
        """One step of the inner optimizer, and with it whatever round is due."""
        self.manager.check_stop()
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for _ in range(self.spec.gradient_accumulation):
            loss = self._loss(self.batches.next_batch()) / self.spec.gradient_accumulation
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self._trained, self.spec.max_grad_norm)
        # Both in one go: an accelerator stops for every number that is asked of it.
        mean_loss, grad_norm = torch.stack((total, norm.to(total.dtype))).tolist()
        if self.guard.accepts(mean_loss, grad_norm, round_index=self.loop.rounds, step=step):
            sums.losses.append(mean_loss)
            sums.norms.append(grad_norm)
        else:
            self.optimizer.zero_grad(set_to_none=True)  # the step then changes nothing, but counts
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.spec, step)
        self.optimizer.step()

    def _held_out_loss(self, windows: torch.Tensor) -> torch.Tensor:
        self.model.eval()
        loss = self._loss(windows)
        self.model.train()
        return loss

    def _loss(self, tokens: torch.Tensor) -> torch.Tensor:
        tokens = tokens.to(self.device)
        # Parameters stay float32; on an accelerator the arithmetic is bfloat16.
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type != "cpu"):
            loss: torch.Tensor = self.model(input_ids=tokens, labels=tokens).loss
        return loss
