"""Every trainable parameter is in exactly one fragment, and the fragments are of a size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainer.fragments import split_fragments
from trainer.model import build_model


class Stack(nn.Module):
    """`layers` equal layers, an embedding and a head that is tied to it."""

    def __init__(self, layers: int, width: int = 4, vocabulary: int = 10) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight


@settings(max_examples=50, deadline=None)
@given(layers=st.integers(1, 9), count=st.integers(1, 5), vocabulary=st.integers(1, 200))
def test_each_parameter_is_in_exactly_one_fragment(layers: int, count: int, vocabulary: int) -> None:
    model = Stack(layers, vocabulary=vocabulary)
    parts = split_fragments(model, min(count, 5))
    covered = [(name, id(p)) for part in parts for name, p in part.named_parameters()]
    assert sorted(covered) == sorted((name, id(p)) for name, p in model.named_parameters())
    assert all(part.numel() > 0 for part in parts)


def test_fragments_stride_over_the_layers() -> None:
    parts = split_fragments(Stack(5), 2)
    layers = [
        {name.split(".")[1] for name, _ in part.named_parameters() if "layers" in name} for part in parts
    ]
    assert layers == [{"0", "2", "4"}, {"1", "3"}]


def test_what_belongs_to_no_layer_fills_the_smallest_fragment() -> None:
    """Layers of 20 numbers: 60 and 40; the embedding of 40 goes to the second, the norm to the first."""
    parts = split_fragments(Stack(5), 2)
    assert "embed.weight" in dict(parts[1].named_parameters())
    assert {"norm.weight", "norm.bias"} <= dict(parts[0].named_parameters()).keys()
    assert [part.numel() for part in parts] == [68, 80]


def test_a_tied_weight_is_registered_once() -> None:
    model = build_model("tiny-random", seq_len=16, seed=0)
    parts = split_fragments(model, 2)
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert sum(part.numel() for part in parts) == model.num_parameters() == 28_928


def test_frozen_parameters_are_left_out() -> None:
    model = Stack(2)
    model.embed.weight.requires_grad_(False)
    assert "embed.weight" not in dict(split_fragments(model, 1)[0].named_parameters())


def test_more_fragments_than_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="fragments 3: the model has only 2 trainable parameters"):
        split_fragments(nn.Linear(2, 2), 3)


def test_a_fragment_registers_nothing_twice() -> None:
    """Moving or counting the model must not see the fragments."""
    part = split_fragments(Stack(2), 1)[0]
    assert part.state_dict() == {}
    assert all(isinstance(p, torch.nn.Parameter) for _, p in part.named_parameters())
