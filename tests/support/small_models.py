"""Small causal language models of four families, written as their authors' tools write them."""

from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

VOCABULARY: Final = 300
POSITIONS: Final = 64
_BODY: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": 0,
}
CONFIGS: Final[dict[str, PreTrainedConfig]] = {
    "llama": LlamaConfig(**_BODY, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**_BODY, head_dim=8, tie_word_embeddings=True),
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0,
    ),
    "mixtral": MixtralConfig(**_BODY, num_local_experts=4, num_experts_per_tok=1, tie_word_embeddings=False),
}  # fmt: skip
TIED: Final = {"qwen3", "gpt2"}


def write_model(family: str, folder: Path, *, seed: int = 7, tokenizer: bool = True) -> Path:
    """A model folder of the family, weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIGS[family])
    model.save_pretrained(folder)
    if tokenizer:
        small_tokenizer().save_pretrained(folder)
    return folder


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with a few merges: 290 tokens, of which one ends a text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([Path(__file__).read_text()] * 2, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>")
