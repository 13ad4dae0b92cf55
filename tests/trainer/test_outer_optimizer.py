"""The outer step: hand-computed numbers, torch's formula, and no fused arithmetic."""

import ast
import inspect

import numpy as np
import torch

from trainer import outer_optimizer
from trainer.outer_optimizer import OuterNesterov


def test_two_steps_by_hand() -> None:
    """lr 0.5, momentum 0.5, gradient 1 then 2.

    m1 = 1;  w1 = 10 - 0.5 (0.5 * 1 + 1) = 9.25
    m2 = 0.5 * 1 + 2 = 2.5;  w2 = 9.25 - 0.5 (0.5 * 2.5 + 2) = 7.625
    """
    w = torch.nn.Parameter(torch.tensor([10.0]))
    optimizer = OuterNesterov([w], lr=0.5, momentum=0.5)
    for gradient, expected in ((1.0, 9.25), (2.0, 7.625)):
        w.grad = torch.tensor([gradient])
        optimizer.step()
        assert w.item() == expected


def test_without_momentum_and_at_rate_one_the_mean_is_taken_as_it_is() -> None:
    w = torch.nn.Parameter(torch.tensor([10.0]))
    optimizer = OuterNesterov([w], lr=1.0, momentum=0.0)
    w.grad = torch.tensor([3.0])
    optimizer.step()
    assert w.item() == 7.0


def test_it_is_torchs_nesterov_up_to_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1000, generator=generator)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    first = OuterNesterov([ours], lr=0.7, momentum=0.9)
    second = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(10):
        ours.grad = torch.randn(1000, generator=generator)
        theirs.grad = ours.grad.clone()
        first.step()
        second.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_each_operation_rounds_once() -> None:
    """The bits of one float32 operation after another, as numpy, which fuses none, computes them."""
    generator = torch.Generator().manual_seed(1)
    w, g, m = (torch.randn(4096, generator=generator) for _ in range(3))
    parameter = torch.nn.Parameter(w.clone())
    optimizer = OuterNesterov([parameter], lr=0.7, momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"].copy_(m)
    parameter.grad = g.clone()
    optimizer.step()
    mu, lr = np.float32(0.9), np.float32(0.7)
    momentum = m.numpy() * mu + g.numpy()
    expected = w.numpy() - (momentum * mu + g.numpy()) * lr
    assert torch.equal(parameter.detach(), torch.from_numpy(expected))


def test_no_operation_takes_alpha_or_value() -> None:
    """add_(x, alpha=), addcmul_(value=) and lerp_ fuse on some processors and not on others."""
    tree = ast.parse(inspect.getsource(outer_optimizer))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    used = {keyword.arg for call in calls for keyword in call.keywords}
    names = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    assert not used & {"alpha", "value", "foreach", "fused"}
    assert names >= {"mul_", "mul", "add_", "sub_"}
    assert not names & {"lerp_", "addcmul_", "addcdiv_", "addmm_"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "SGD"]


def test_the_momentum_is_there_from_the_start() -> None:
    w = torch.nn.Parameter(torch.ones(2))
    state = OuterNesterov([w], lr=1.0, momentum=0.9).state_dict()["state"]
    assert state[0]["momentum_buffer"].tolist() == [0.0, 0.0]
