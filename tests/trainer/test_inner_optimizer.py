"""The inner optimizer: what decays, what Muon takes, and that two optimizers behave as one."""

import io
import re
from typing import Any

import pytest
import torch
from torch import nn

from trainer.inner_optimizer import MuonWithAdamW, hidden_matrices, learning_rate, make_inner_optimizer
from trainer.model import build_model
from trainer.run_spec import RunSpec, parse


def model() -> nn.Module:
    return build_model("tiny-random", seq_len=16, seed=0)


def spec(**given: Any) -> RunSpec:
    return parse({"lr": 0.01, "total_steps": 12, "sync_every": 4, **given})


def gradients(of: nn.Module, step: int) -> None:
    chance = torch.Generator().manual_seed(step)
    for parameter in of.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=chance)


def values(of: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in of.parameters()]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weight_decay_moves_matrices_and_neither_norms_nor_biases(kind: str) -> None:
    made = model()
    made.register_parameter("bias", nn.Parameter(torch.ones(3)))
    optimizer = make_inner_optimizer(made, spec(inner_optimizer=kind, weight_decay=0.5))
    before = values(made)
    for parameter in made.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for old, (name, new) in zip(before, made.named_parameters(), strict=True):
        expected = old * (1 - 0.01 * 0.5) if new.ndim == 2 else old
        torch.testing.assert_close(new.detach(), expected, msg=name)


def test_muon_takes_the_matrices_between_embedding_and_head() -> None:
    made = model()
    names = hidden_matrices(made)
    assert len(names) == 2 * 7  # two layers: q, k, v, o, gate, up, down
    assert all(name.startswith("model.layers.") and name.endswith("proj.weight") for name in names)


def test_an_untied_head_and_an_embedding_stay_with_adamw() -> None:
    made = model()
    made.lm_head.weight = nn.Parameter(made.lm_head.weight.detach().clone())
    assert "lm_head.weight" in dict(made.named_parameters())
    assert not hidden_matrices(made) & {"lm_head.weight", "model.embed_tokens.weight"}


def test_frozen_parameters_are_in_no_group() -> None:
    made = model()
    frozen = made.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    for kind in ("adamw", "muon"):
        optimizer = make_inner_optimizer(made, spec(inner_optimizer=kind))
        held = [p for group in optimizer.param_groups for p in group["params"]]
        assert len(held) == len(list(made.parameters())) - 1
        assert all(p is not frozen for p in held)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("trained", ["", "proj", "norm", "embed_tokens", "embed_tokens|norm"])
def test_whatever_trains_is_in_one_group(kind: str, trained: str) -> None:
    """LoRA trains hidden matrices alone, `trainable` any choice."""
    made = model()
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(re.search(trained, name) is not None)
    optimizer = make_inner_optimizer(made, spec(inner_optimizer=kind))
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) > 0
    assert set(held) == {p for p in made.parameters() if p.requires_grad}
    before = values(made)
    gradients(made, 0)
    optimizer.step()
    for old, new in zip(before, made.parameters(), strict=True):
        assert torch.equal(old, new) != new.requires_grad


def test_muon_with_adamw_is_bitwise_the_two_by_themselves() -> None:
    together, apart = model(), model()
    one = make_inner_optimizer(together, spec(inner_optimizer="muon"))
    assert isinstance(one, MuonWithAdamW)
    hidden = hidden_matrices(apart)
    named = dict(apart.named_parameters())
    muon = torch.optim.Muon(
        [named[n] for n in named if n in hidden],
        lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    rest = [p for n, p in named.items() if n not in hidden]
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.ndim == 2], "weight_decay": 0.1},
            {"params": [p for p in rest if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=0.01, betas=(0.9, 0.95), fused=True,
    )  # fmt: skip
    for step in range(3):
        for group in (*one.param_groups, *muon.param_groups, *adamw.param_groups):
            group["lr"] = 0.01 / (step + 1)
        gradients(together, step)
        gradients(apart, step)
        one.step()
        muon.step()
        adamw.step()
    for ours, theirs in zip(values(together), values(apart), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_training_goes_on_bitwise_from_a_saved_state(kind: str) -> None:
    """One state_dict in torch's own form, through a file that weights_only loads."""
    whole = model()
    optimizer = make_inner_optimizer(whole, spec(inner_optimizer=kind))
    for step in range(2):
        gradients(whole, step)
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved, weights = torch.load(file, weights_only=True), values(whole)
    assert set(saved) == {"state", "param_groups"}
    assert sorted(saved["state"]) == list(range(len(weights)))
    resumed = model()
    with torch.no_grad():
        for parameter, value in zip(resumed.parameters(), weights, strict=True):
            parameter.copy_(value)
    again = make_inner_optimizer(resumed, spec(inner_optimizer=kind))
    again.load_state_dict(saved)
    for made, its in ((whole, optimizer), (resumed, again)):
        gradients(made, 2)
        its.step()
    for ours, theirs in zip(values(resumed), values(whole), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_step_without_gradients_changes_nothing_and_counts(kind: str) -> None:
    made = model()
    optimizer = make_inner_optimizer(made, spec(inner_optimizer=kind))
    steps: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: steps.append("before"))
    optimizer.register_step_post_hook(lambda *_: steps.append("after"))
    gradients(made, 0)
    optimizer.step()
    before = values(made)
    state = [{k: v.clone() for k, v in held.items()} for held in optimizer.state_dict()["state"].values()]
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()
    assert steps == ["before", "after"] * 2
    for old, new in zip(before, values(made), strict=True):
        assert torch.equal(old, new)
    for held, kept in zip(optimizer.state_dict()["state"].values(), state, strict=True):
        assert all(torch.equal(held[name], kept[name]) for name in kept)


def test_warm_up_then_a_cosine_to_a_tenth_or_a_constant() -> None:
    given = spec(lr=1.0, warmup_steps=4)
    rates = [learning_rate(given, step) for step in range(12)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[8] == pytest.approx(0.1 + 0.9 * 0.5)  # half-way down the cosine
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert learning_rate(given, 12) == pytest.approx(0.1)
    constant = spec(lr=1.0, warmup_steps=4, lr_schedule="constant")
    assert [learning_rate(constant, step) for step in range(12)] == [0.25, 0.5, 0.75] + [1.0] * 9
