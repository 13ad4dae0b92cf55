"""diloco_train: the default trainer function, and the pattern for one of your own.

A causal language model from transformers, inner AdamW or Muon with warm-up and a schedule,
clipping, gradient accumulation, and DiLoCo around it (Algorithm 1, arXiv:2311.08105).
"""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from trainer.adapters import save_model
from trainer.data import Batches, bigram_loss, held_out_windows, open_data_set
from trainer.diloco import make_diloco_outer_loop
from trainer.inner_loop import InnerLoop
from trainer.inner_optimizer import make_inner_optimizer
from trainer.metrics import RoundMetrics, tensorboard_of
from trainer.mlflow_sink import mlflow_sink
from trainer.model_loading import load_model, load_tokenizer
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.run_spec import InvalidRunParameters, parse
from trainer.step_guard import StepGuard

log = logging.getLogger(__name__)


def diloco_train(
    *, manager: ObjectStoreManager, rank: int, world_size: int, model_dir: Path, **parameters: Any
) -> dict[str, Any]:
    """Train one replica and save the shared weights to `model_dir`, as save_pretrained does.

    `parameters` are run parameters by name (run_spec.RunSpec says which and what they mean).
    Returns held-out losses in nats per token: `first_loss`, `last_loss`, and `bigram_loss`, the
    yardstick. Raises NonFinite where more steps than max_skipped_steps have no finite loss or gradient.
    """
    disable_progress_bar()  # a log is no terminal
    spec = parse({**parameters, "n_replicas": world_size})
    torch.manual_seed(spec.seed * 1_000_003 + rank)  # what dropout draws before there is a checkpoint
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(spec, model_dir.parent)
    data = open_data_set(
        spec.dataset_uri,
        tokenizer,
        validation_uri=spec.validation_uri,
        held_out_share=spec.held_out_share,
        text_field=spec.text_field,
        max_bad_rows=spec.max_bad_rows,
    )
    batches = Batches(
        data,
        rank=rank,
        world_size=world_size,
        seq_len=spec.seq_len,
        batch_size=spec.batch_size,
        seed=spec.seed,
        shuffle_buffer=spec.shuffle_buffer,
    )
    held_out = held_out_windows(data, spec.seq_len)
    model = load_model(spec, tokenizer, device, model_dir.parent)
    trainable = sum(p.requires_grad for p in model.parameters())
    if spec.fragments > trainable:
        raise InvalidRunParameters({"fragments": f"must be at most {trainable}, this model's parameters"})
    optimizer = make_inner_optimizer(model, spec)
    guard = StepGuard(rank, spec.max_skipped_steps)
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
        stateful={"data": batches, "skipped_steps": guard},
    )
    if loop.replayed:
        batches.seek(loop.first_inner_step * spec.gradient_accumulation)
    places = [tensorboard_of(model_dir, rank), mlflow_sink(manager, rank, spec)]
    metrics = RoundMetrics(manager, rank, [place for place in places if place is not None])
    replica = InnerLoop(
        spec, rank, model, optimizer, batches, held_out, loop, manager, device, metrics, guard
    )
    log.info(
        "event=started rank=%d of=%d parameters=%d data_files=%d first_round=%d",
        rank, world_size, model.num_parameters(), len(data.source.files), loop.rounds,
    )  # fmt: skip
    first_loss, last_loss = replica.train()
    loop.load_shared()
    save_model(model, model_dir)
    tokenizer.save_pretrained(model_dir)
    yardstick = bigram_loss(data, held_out)
    return {
        "first_loss": first_loss,
        "last_loss": last_loss,
        **({} if yardstick is None else {"bigram_loss": yardstick}),
    }
