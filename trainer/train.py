"""diloco_train: the default trainer function, and the pattern for one of your own.

A causal language model from transformers, inner AdamW with warm-up and cosine, clipping,
gradient accumulation, and DiLoCo around it (Algorithm 1, arXiv:2311.08105).
"""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from trainer.data import Batches, bigram_loss, held_out_windows, load_corpus
from trainer.diloco import make_diloco_outer_loop
from trainer.inner_loop import InnerLoop
from trainer.inner_optimizer import make_inner_optimizer
from trainer.model import build_model, build_tokenizer
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.run_spec import InvalidRunParameters, parse

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
    torch.manual_seed(spec.seed * 1_000_003 + rank)  # what dropout draws before there is a checkpoint
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
    trainable = sum(p.requires_grad for p in model.parameters())
    if spec.fragments > trainable:
        raise InvalidRunParameters({"fragments": f"must be at most {trainable}, this model's parameters"})
    optimizer = make_inner_optimizer(model, spec)
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
        stateful={"data": batches},
    )
    if loop.replayed:
        batches.seek(loop.first_inner_step * spec.gradient_accumulation)
    replica = InnerLoop(spec, rank, model, optimizer, batches, held_out, loop, manager, device)
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
