"""What a replica must find again to go on as if it had never stopped, and how it is put back.

Taken between two inner steps, right after a round's outer step, when no exchange is in flight: the
next round's begins later, whatever the delay. Put back in torchft's order: a DiLoCo that is made
takes the weights it finds for the shared ones, so the shared ones are loaded after it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torchft.local_sgd import DiLoCo

from trainer import random_state
from trainer.checkpoint import Checkpoint
from trainer.failures import ForeignCheckpoint
from trainer.rendezvous.manager import ObjectStoreManager


class Stateful(Protocol):
    """What a trainer keeps besides model and optimizers: data position, loss scaler, scheduler.

    The state may hold dicts, lists, tuples, numbers, texts and tensors. It is taken inside
    `inner_optimizer.step()`: what changes afterwards in the same inner step is not in it.
    """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class LoopState:
    """Everything that is a replica's state at the beginning of a round."""

    manager: ObjectStoreManager
    model: nn.Module
    diloco: DiLoCo
    inner_optimizer: torch.optim.Optimizer
    stateful: Mapping[str, Stateful]

    def capture(self) -> dict[str, Any]:
        """The state as it is now, for Checkpoints.write; only while no exchange is in flight."""
        if torch.accelerator.is_available():  # torchft's copies of the shared weights may be under way
            torch.accelerator.synchronize()
        fragments = self.manager.fragment_states()
        return {
            "local": _tensors_of(self.model),
            "shared": {key: fragment["original_parameters"] for key, fragment in fragments.items()},
            "outer": {key: fragment["outer_optimizer"] for key, fragment in fragments.items()},
            "inner": self.inner_optimizer.state_dict(),
            "stateful": {name: part.state_dict() for name, part in self.stateful.items()},
            "unsent": {f: torch.from_numpy(values) for f, values in self.manager.unsent.items()},
            "random": random_state.capture(),
            "local_step": self.diloco._local_step,
        }

    def restore(self, saved: Checkpoint) -> None:
        """Put a checkpoint's state back. Raises ForeignCheckpoint where its names or shapes aren't ours."""
        state = saved.state
        self._require_same(saved)
        with torch.no_grad():
            for name, tensor in _tensors_of(self.model).items():
                tensor.copy_(state["local"][name])
        self.inner_optimizer.load_state_dict(state["inner"])
        fragments = {
            key: {"original_parameters": state["shared"][key], "outer_optimizer": state["outer"][key]}
            for key in state["shared"]
        }
        unsent = {fragment: values.clone().numpy() for fragment, values in state["unsent"].items()}
        self.manager.restore(saved.round, fragments, unsent)
        self.diloco._local_step = state["local_step"]
        for name, part in self.stateful.items():
            part.load_state_dict(state["stateful"][name])
        random_state.restore(state["random"])

    def _require_same(self, saved: Checkpoint) -> None:
        ours, theirs = self.capture(), saved.state
        _require_names(saved, "the parts of a checkpoint", ours, theirs)
        _require_names(saved, "stateful", ours["stateful"], theirs["stateful"])
        _require_names(saved, "fragments", ours["shared"], theirs["shared"])
        _require_alike(saved, "the model", ours["local"], theirs["local"])
        for key in ours["shared"]:
            _require_alike(saved, f"shared weights of {key}", ours["shared"][key], theirs["shared"][key])
            _require_optimizer(saved, f"outer optimizer of {key}", ours["outer"][key], theirs["outer"][key])
        _require_optimizer(saved, "inner optimizer", ours["inner"], theirs["inner"])


def _tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, a tied one once."""
    kept = model.state_dict(keep_vars=True).keys()
    named = dict(model.named_parameters())
    return {**named, **{name: buffer for name, buffer in model.named_buffers() if name in kept}}


def _require_names(saved: Checkpoint, what: str, ours: Collection[Any], theirs: Collection[Any]) -> None:
    missing, extra = (sorted(map(str, set(a) - set(b))) for a, b in ((ours, theirs), (theirs, ours)))
    if missing or extra:
        raise ForeignCheckpoint(
            f"{saved.folder} is of another model or trainer than this: {what}: missing {missing[:3]}, "
            f"extra {extra[:3]} ({len(missing)} and {len(extra)} in all). Resume with the code that wrote it."
        )


def _require_alike(
    saved: Checkpoint, what: str, ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]
) -> None:
    _require_names(saved, what, ours, theirs)
    wrong = [n for n, t in ours.items() if (t.shape, t.dtype) != (theirs[n].shape, theirs[n].dtype)]
    if wrong:
        raise ForeignCheckpoint(
            f"{saved.folder}: {what}: {len(wrong)} tensors have another shape or type than this model's, "
            f"first {wrong[:3]}. Resume with the code that wrote it."
        )


def _require_optimizer(
    saved: Checkpoint, what: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> None:
    """The same parameters in the same groups, none without its state. Before its first step it has none."""
    groups = [[group["params"] for group in state["param_groups"]] for state in (ours, theirs)]
    if groups[0] != groups[1]:
        raise ForeignCheckpoint(
            f"{saved.folder}: {what}: its parameter groups are {groups[1]}, not {groups[0]}. Resume with the "
            "code that wrote it."
        )
    if ours["state"]:
        _require_names(saved, what, ours["state"], theirs["state"])
