"""State dicts as JSON and named tensors, and back: what a checkpoint holds, with nothing to unpickle.

A state dict is a tree of dicts, lists, tuples, numbers, texts and tensors. Tensors go to a safetensors
file under their path in the tree; the rest becomes JSON, which Python reads back to the same values:
whole numbers of any size, and floats to the last bit. Dicts become lists of pairs, since an
optimizer's are keyed by number and JSON's by text.
"""

from collections.abc import Mapping
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


def pack(tree: Any, path: str, tensors: Tensors, *, owned: bool = False) -> Any:
    """The JSON form of `tree`; its tensors are copied to the CPU's memory, into `tensors`.

    `owned` says that nobody else will change the tree's tensors: those on the CPU are not copied.
    Raises TypeError, naming the path, for a value that has no such form.
    """
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    if isinstance(tree, torch.Tensor):
        tensors[path] = tree.detach().to("cpu", copy=not owned).contiguous()
        return {"tensor": path}
    if isinstance(tree, Mapping):
        if wrong := [key for key in tree if not isinstance(key, int | str)]:
            raise TypeError(f"{path}: the key {wrong[0]!r} is neither a text nor a whole number")
        pairs = [[key, pack(tree[key], f"{path}/{key}", tensors, owned=owned)] for key in tree]
        return {"dict": pairs}
    if isinstance(tree, list | tuple):
        items = [pack(item, f"{path}/{i}", tensors, owned=owned) for i, item in enumerate(tree)]
        return items if isinstance(tree, list) else {"tuple": items}
    raise TypeError(
        f"{path}: a {type(tree).__name__} can't be kept in a checkpoint; a state_dict may hold dicts, lists, "
        "tuples, numbers, texts and tensors"
    )


def unpack(node: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What `pack` was given. Raises KeyError for a tensor that isn't there."""
    if isinstance(node, list):
        return [unpack(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "tuple" in node:
        return tuple(unpack(item, tensors) for item in node["tuple"])
    return {key: unpack(value, tensors) for key, value in node["dict"]}
