"""The two halves of MFU, against counts made by hand."""

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM

from trainer.flops import flops_per_token, peak_flops, peak_of
from trainer.model import build_model

ATTENTION = 12 * 2 * 32 * 16  # layers, hidden size, sequence


def test_every_parameter_counts_six_and_attention_on_top() -> None:
    model = build_model("tiny-random", seq_len=16, seed=0)
    assert flops_per_token(model, 16) == 6 * model.num_parameters() + ATTENTION  # tied: the table is the head


def test_a_table_that_is_only_looked_up_costs_nothing() -> None:
    model = build_model("tiny-random", seq_len=16, seed=0)
    head = model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    rest = model.num_parameters() - head.numel()
    assert flops_per_token(model, 16) == 6 * rest + ATTENTION


def test_frozen_parameters_need_no_gradient_of_their_own() -> None:
    model = build_model("tiny-random", seq_len=16, seed=0)
    whole = flops_per_token(model, 16)
    up = model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    assert flops_per_token(model, 16) == whole - 2 * up.numel()


def test_a_token_is_sent_to_two_of_four_experts() -> None:
    config = MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    experts = 2 * 4 * 3 * 32 * 16  # layers, experts, matrices of an expert
    assert flops_per_token(model, 16) == 6 * (model.num_parameters() - experts / 2) + ATTENTION


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A10G", 70e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("Tesla T4", None),
        ("Tesla V100-SXM2-16GB", None),
    ],
)
def test_peaks_are_found_by_the_name_of_the_gpu(name: str, peak: float | None) -> None:
    assert peak_of(name) == peak


def test_a_cpu_has_no_known_peak() -> None:
    assert peak_flops(torch.device("cpu")) is None
