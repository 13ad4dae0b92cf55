"""diloco_train: the default trainer function, and the pattern for one of your own.

A causal language model from transformers, inner AdamW with warm-up and cosine, clipping,
gradient accumulation, and DiLoCo around it (Algorithm 1, arXiv:2311.08105).
"""

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from trainer.data import Batches, bigram_loss, held_out_windows, load_corpus
from trainer.diloco import DiLoCoLoop, make_diloco_outer_loop
from trainer.metrics import RoundMetrics
from trainer.model import BYTE_OFFSET, build_model, build_tokenizer
from trainer.rendezvous.errors import NonFinite
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.run_spec import RunSpec, parse

EVAL_BATCH: Final = 16
FINAL_LR_SHARE: Final = 0.1  # the cosine ends at a tenth of the peak, as usual for language models

log = logging.getLogger(__name__)


def diloco_train(
    *, manager: ObjectStoreManager, rank: int, world_size: int, model_dir: Path, **parameters: Any
) -> dict[str, Any]:
    """Train one replica and save the shared weights to `model_dir`, as save_pretrained does.

    `parameters` are run parameters by name (run_spec.RunSpec says which and what they mean).
    Returns held-out losses in nats per token: `first_loss`, `last_loss`, and `bigram_loss`, the
    yardstick. Raises NonFinite at the first loss that is not a number.
    """
    disable_progress_bar()  # a log is no terminal
    spec = parse({**parameters, "n_replicas": world_size})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus = load_corpus(spec.dataset_uri)
    batches = Batches(
        corpus,
        rank=rank,
        world_size=world_size,
        seq_len=spec.seq_len,
        batch_size=spec.batch_size,
        seed=spec.seed,
    )
    held_out = held_out_windows(corpus, spec.seq_len)
    model = build_model(spec.model_name, seq_len=spec.seq_len, seed=spec.seed).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=spec.lr, betas=(0.9, 0.95), weight_decay=spec.weight_decay
    )
    loop = make_diloco_outer_loop(
        manager=manager,
        model=model,
        inner_optimizer=optimizer,
        sync_every=spec.sync_every,
        outer_lr=spec.outer_lr,
        outer_momentum=spec.outer_momentum,
        fragments=spec.fragments,
        fragment_sync_delay=spec.fragment_sync_delay,
        fragment_update_alpha=spec.fragment_update_alpha,
    )
    replica = _Replica(spec, rank, model, optimizer, batches, held_out, loop, manager, device)
    first_loss = replica.evaluate()
    log.info(
        "event=started rank=%d of=%d parameters=%d train_bytes=%d first_round=%d first_loss=%.4f",
        rank, world_size, model.num_parameters(), len(corpus.train), loop.rounds, first_loss,
    )  # fmt: skip
    last_loss = replica.train()
    loop.load_shared()
    model.save_pretrained(model_dir)
    build_tokenizer().save_pretrained(model_dir)
    return {
        "first_loss": first_loss,
        "last_loss": first_loss if last_loss is None else last_loss,
        "bigram_loss": bigram_loss(corpus, held_out),
    }


def learning_rate(spec: RunSpec, step: int) -> float:
    """The inner learning rate of inner step `step`, from 0: linear warm-up, then a cosine."""
    if step < spec.warmup_steps:
        return spec.lr * (step + 1) / spec.warmup_steps
    done = (step - spec.warmup_steps) / max(spec.total_steps - spec.warmup_steps, 1)
    share = FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    return spec.lr * share


@dataclass
class _Replica:
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
        for micro in range(accumulate):
            loss = self._loss(self.batches.batch(step * accumulate + micro)) / accumulate
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
