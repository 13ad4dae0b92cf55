"""The built-in models: small Llamas over bytes, from random weights, needing no download.

Real transformers classes, so that what is saved loads with AutoModelForCausalLM and
AutoTokenizer. Bytes are tokenised as ByT5 does (byte + 3 special tokens), without its
sentinel tokens.
"""

from typing import Final

import torch
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

BYTE_OFFSET: Final = 3  # ByT5: 0 padding, 1 end of sequence, 2 unknown, then the 256 bytes
VOCABULARY: Final = BYTE_OFFSET + 256

# hidden size, feed-forward size, layers, heads
BUILT_IN: Final = {
    "tiny-random": (32, 64, 2, 2),  # 28 928 parameters: for smoke runs and tests
    "small-random": (96, 256, 3, 4),  # 357 312 parameters: learns text in a minute on a laptop
}


def build_model(name: str, *, seq_len: int, seed: int) -> LlamaForCausalLM:
    """A built-in model in float32, its weights drawn from `seed`."""
    hidden, feed_forward, layers, heads = BUILT_IN[name]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=seq_len,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):  # leave the caller's random state alone
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def build_tokenizer() -> ByT5Tokenizer:
    """The byte tokenizer that belongs to the built-in models."""
    return ByT5Tokenizer(extra_ids=0)
