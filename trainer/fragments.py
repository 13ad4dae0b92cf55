"""Splitting a model into the fragments that Streaming DiLoCo synchronises in turn.

Strided over the layers, as the paper finds best (arXiv:2501.18512, section 3.1): fragment i
takes layers i, i + F, i + 2F, so that no fragment is all bottom or all top. What belongs to no
layer (embeddings, last norm, head) fills the smallest fragments up. Built from de-duplicated
parameters: torchft would register a tied weight twice, and would never synchronise one that is
in no fragment.
"""

import re
from collections.abc import Iterator

import torch
from torch import nn

from trainer.rendezvous.state_hash import weights_hash

_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


class Fragment(nn.Module):
    """Some parameters of a model under their full names; all that torchft reads of a module."""

    def __init__(self, named: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self._named = named  # a plain dict: nothing is registered, names keep their dots

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._named.items()

    def set_gradients(self, flat: torch.Tensor) -> None:
        """Unpack a flat mean the way torchft packs a bucket: parameter by parameter, in order."""
        offset = 0
        for parameter in self._named.values():
            piece = flat[offset : offset + parameter.numel()]
            parameter.grad = piece.view_as(parameter).to(parameter.device)
            offset += parameter.numel()

    def numel(self) -> int:
        return sum(parameter.numel() for parameter in self._named.values())


def split_fragments(model: nn.Module, count: int) -> list[Fragment]:
    """`count` fragments that hold each trainable parameter of `model` exactly once.

    Raises ValueError where there are fewer parameters than fragments, or none to train.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if len(named) < count:
        raise ValueError(f"fragments {count}: the model has only {len(named)} trainable parameters")
    layers: dict[int, list[str]] = {}
    rest: list[list[str]] = []
    for name in named:
        match = _LAYER.search(name)
        if match:
            layers.setdefault(int(match[1]), []).append(name)
        else:
            rest.append([name])
    parts: list[list[str]] = [[] for _ in range(count)]
    if len(layers) >= count:
        for position, layer in enumerate(sorted(layers)):
            parts[position % count] += layers[layer]
    else:  # too few layers to stride over: balance single parameters
        rest = [[name] for name in named]

    def size(names: list[str]) -> int:
        return sum(named[name].numel() for name in names)

    for unit in sorted(rest, key=size, reverse=True):
        min(parts, key=size).extend(unit)
    order = {name: position for position, name in enumerate(named)}
    return [Fragment({name: named[name] for name in sorted(part, key=order.__getitem__)}) for part in parts]


def to_share(model: nn.Module) -> dict[str, torch.Tensor]:
    """What all ranks must start from: every trainable parameter, and a name for the frozen ones.

    The name is their hash, on a tensor without values: ranks whose frozen weights differ don't hold
    the same tensors, and are told so before they train.
    """
    named: dict[str, torch.Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    frozen = [(n, p) for n, p in model.named_parameters() if not p.requires_grad]
    if frozen:
        named[f"frozen weights {weights_hash(frozen)}"] = torch.empty(0)
    return named
