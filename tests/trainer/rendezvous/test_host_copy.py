"""A tensor's values where the network is: always equal, and the tensor's own memory just where promised."""

import numpy as np
import pytest
import torch

from trainer.rendezvous.host_copy import HostCopy

HAS_ACCELERATOR = torch.accelerator.is_available()


def test_a_contiguous_float32_tensor_is_worked_on_in_place() -> None:
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    found = HostCopy(tensor).values()
    assert (found.dtype, found.tolist()) == (np.float32, [0, 1, 2, 3, 4, 5])
    found[4] = -1
    assert tensor.tolist() == [[0, 1, 2], [3, -1, 5]]


def test_a_parameter_is_taken_without_its_gradient() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    found = HostCopy(parameter).values()
    found[0] = 5
    assert parameter.tolist() == [5, 2]
    assert parameter.grad is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.float32).reshape(2, 3).T,
        torch.arange(12, dtype=torch.float32)[::2],
        torch.tensor(3.0).expand(4),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1.0, 2.0**-30], dtype=torch.float64),
    ],
    ids=["transposed", "strided", "expanded", "bfloat16", "float64"],
)
def test_any_other_tensor_is_copied_in_its_own_order(tensor: torch.Tensor) -> None:
    before = tensor.clone()
    found = HostCopy(tensor).values()
    assert (found.dtype, found.tolist()) == (np.float32, before.reshape(-1).tolist())
    found[:] = -7
    assert torch.equal(tensor, before)


@pytest.mark.parametrize(("shape", "size"), [((), 1), ((0,), 0), ((2, 0), 0)])
def test_the_smallest_tensors_are_flat_too(shape: tuple[int, ...], size: int) -> None:
    assert HostCopy(torch.ones(shape)).values().tolist() == [1.0] * size


def test_values_may_be_asked_for_twice() -> None:
    copy = HostCopy(torch.ones(3))
    assert np.shares_memory(copy.values(), copy.values())


@pytest.mark.skipif(not HAS_ACCELERATOR, reason="needs an accelerator")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_from_an_accelerator_the_values_are_those_of_the_moment(dtype: torch.dtype) -> None:
    device = torch.accelerator.current_accelerator()
    tensor = torch.arange(2**20, device=device).to(dtype).view(2**10, 2**10).T
    expected = tensor.reshape(-1).to("cpu", torch.float32).numpy().copy()
    copy = HostCopy(tensor)
    tensor.fill_(-1)  # on the same stream, so after the copy
    assert copy.values().tobytes() == expected.tobytes()
