"""diloco_train: the default trainer function, and the pattern for one of your own.

A causal language model from transformers, inner AdamW with warm-up and cosine, clipping,
gradient accumulation, and DiLoCo around it (Algorithm 1, arXiv:2311.08105).
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from trainer.adapters import save_model
from trainer.data import Batches, bigram_loss, held_out_windows, load_corpus
from trainer.diloco import make_diloco_outer_loop
from trainer.inner_loop import InnerLoop
from trainer.inner_optimizer import make_inner_optimizer
from trainer.model import BYTE_OFFSET
from trainer.model_loading import load_model, load_tokenizer
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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(spec, model_dir.parent)
    corpus = load_corpus(spec.dataset_uri)
    bytewise = isinstance(tokenizer, ByT5Tokenizer)
    if not bytewise:
        corpus = replace(
            corpus, train=_ids(tokenizer, corpus.train), held_out=_ids(tokenizer, corpus.held_out)
        )
    batches = Batches(
        corpus,
        rank=rank,
        world_size=world_size,
        seq_len=spec.seq_len,
        batch_size=spec.batch_size,
        seed=spec.seed,
    )
    held_out = held_out_windows(corpus, spec.seq_len)
    model = load_model(spec, tokenizer, device, model_dir.parent)
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
    )
    replica = InnerLoop(spec, rank, model, optimizer, batches, held_out, loop, manager, device)
    first_loss = replica.evaluate()
    log.info(
        "event=started rank=%d of=%d parameters=%d train_bytes=%d first_round=%d first_loss=%.4f",
        rank, world_size, model.num_parameters(), len(corpus.train), loop.rounds, first_loss,
    )  # fmt: skip
    last_loss = replica.train()
    loop.load_shared()
    save_model(model, model_dir)
    tokenizer.save_pretrained(model_dir)
    return {
        "first_loss": first_loss,
        "last_loss": first_loss if last_loss is None else last_loss,
        **({"bigram_loss": bigram_loss(corpus, held_out)} if bytewise else {}),
    }


def _ids(tokenizer: PreTrainedTokenizerBase, text: torch.Tensor) -> torch.Tensor:
    """UTF-8 bytes as token ids, less the offset of bytes, which batches add; shape (tokens,), int32."""
    decoded = text.numpy().tobytes().decode(errors="replace")
    ids = tokenizer(decoded, add_special_tokens=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.int32) - BYTE_OFFSET
