"""The last shared state of an earlier run: where a run with `resume_from` starts.

A finished run has left it beside its model. Of a run that was given up it is rebuilt from the log:
its initial state, then each round's mean through the outer step. That takes the payloads of all its
rounds, which expire (Settings.payload_days), and as long as fetching them does.
"""

import copy
import logging

import numpy as np
import torch
from torch import nn

from trainer.fragments import Fragment, split_fragments, to_share
from trainer.outer_optimizer import OuterNesterov
from trainer.rendezvous.averaging import Averaging, average_whole
from trainer.rendezvous.base import Base
from trainer.rendezvous.documents import InitialWeights, Roster, Source
from trainer.rendezvous.errors import AbsentObject, ForeignObject
from trainer.rendezvous.geometry import Geometry
from trainer.rendezvous.initial import SharedState, Tensors, publish, read_state
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.state_hash import weights_hash
from trainer.rendezvous.wire import FORMATS
from trainer.run_file import load_run
from trainer.run_spec import InvalidRunParameters, RunSpec

log = logging.getLogger(__name__)


def last_state(run_log: RunLog, model: nn.Module) -> SharedState:
    """Shared weights and outer momentum of a run after its last committed round.

    `model` has the parameters of that run's model; it isn't changed. Raises InvalidRunParameters where
    the run has never begun, AbsentObject where what is needed has expired, ForeignObject where its log
    isn't of such a model.
    """
    spec = load_run(run_log.store, run_log.run_id).spec
    found = _manifest(run_log, run_log.keys.initial)
    if found is None:
        raise InvalidRunParameters({"resume_from": f"run {run_log.run_id} ended before its first inner step"})
    first, last = read_state(run_log, found), _manifest(run_log, run_log.keys.shared_state)
    if last is not None:
        state = read_state(run_log, last)
        # What doesn't train is in the initial weights alone.
        return SharedState({**first.weights, **state.weights}, state.momentum, state.source)
    try:
        return _fold(run_log, spec, first, copy.deepcopy(model).cpu())
    except AbsentObject as error:
        raise AbsentObject(
            f"resume_from {run_log.run_id}: its shared weights can't be rebuilt: {error} A run that did not "
            "finish can be resumed while the payloads of all its rounds are kept (payload_days)."
        ) from error


def publish_last_state(manager: ObjectStoreManager) -> None:
    """Leave shared weights and outer momentum beside the model, for a run that resumes this one."""
    weights: dict[str, torch.Tensor] = {}
    momentum: dict[str, torch.Tensor] = {}
    for state in manager.fragment_states().values():
        names = list(state["original_parameters"])
        weights |= state["original_parameters"]
        slots = state["outer_optimizer"]["state"].items()
        momentum |= {names[i]: slot["momentum_buffer"] for i, slot in slots if "momentum_buffer" in slot}
    run_log, rank, claim = manager.log, manager.rank, manager.claim
    source = Source(run_log.run_id, manager.current_step(), manager.weights_hash())
    key = run_log.keys.shared_state_payload(rank, claim)
    manifest = publish(run_log, rank, claim, key, SharedState(weights, momentum, source))
    run_log.store.put(run_log.keys.shared_state, manifest.encode())


def put_momentum(parts: list[Fragment], outer: list[OuterNesterov], momentum: Tensors) -> None:
    """Give the outer optimizers a momentum to begin with, by parameter name."""
    for part, optimizer in zip(parts, outer, strict=True):
        for name, parameter in part.named_parameters():
            if name in momentum:
                optimizer.state[parameter]["momentum_buffer"].copy_(momentum[name])


def _manifest(run_log: RunLog, key: str) -> InitialWeights | None:
    data = run_log.store.find(key)
    if data is None:
        return None
    manifest = InitialWeights.decode(data, run_log.store.address(key))
    manifest.check_is(run_log.store.address(key), run_id=run_log.run_id)
    return manifest


def _fold(run_log: RunLog, spec: RunSpec, first: SharedState, model: nn.Module) -> SharedState:
    named = to_share(model)
    if wrong := sorted(named.keys() ^ first.weights.keys()):
        raise ForeignObject(
            f"resume_from {run_log.run_id}: it is of another model than this run's: missing or extra are "
            f"{wrong[:3]} ({len(wrong)} in all). Give model_name of that run."
        )
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(first.weights[name])
    parts = split_fragments(model, spec.fragments)
    outer = [
        OuterNesterov((p for _, p in part.named_parameters()), lr=spec.outer_lr, momentum=spec.outer_momentum)
        for part in parts
    ]
    put_momentum(parts, outer, first.momentum)
    round_index = 0
    while (roster := run_log.roster(round_index)) is not None:
        part, optimizer = parts[round_index % len(parts)], outer[round_index % len(parts)]
        part.set_gradients(_mean(run_log, spec, roster, round_index % len(parts), part, optimizer))
        optimizer.step()
        optimizer.zero_grad()
        round_index += 1
    weights = {name: parameter.detach() for name, parameter in named.items()}
    momentum = {
        name: optimizer.state[parameter]["momentum_buffer"]
        for part, optimizer in zip(parts, outer, strict=True)
        for name, parameter in part.named_parameters()
    }
    source = Source(run_log.run_id, round_index, weights_hash(_trained(parts)))
    log.info(
        "event=rebuilt run=%s round=%d weights_hash=%s", source.run_id, source.round, source.weights_hash
    )
    return SharedState(weights, momentum, source)


def _trained(parts: list[Fragment]) -> list[tuple[str, torch.Tensor]]:
    """What a weights' hash is over: the parameters that train."""
    return [(name, parameter.detach()) for part in parts for name, parameter in part.named_parameters()]


def _mean(
    run_log: RunLog, spec: RunSpec, roster: Roster, index: int, part: Fragment, optimizer: OuterNesterov
) -> torch.Tensor:
    """The round's mean, flat, from its members' payloads."""
    original = {name: parameter.detach() for name, parameter in part.named_parameters()}
    base = Base.of(index, {"original_parameters": original, "outer_optimizer": optimizer.state_dict()})
    if base.shared_hash != roster.base_hash:
        raise ForeignObject(
            f"resume_from {run_log.run_id} round {roster.round}: the log doesn't lead to the weights that "
            "its replicas had; was another trainer at work, or other outer settings than its run.json says?"
        )
    members = run_log.members_of(roster)
    geometry, wire = Geometry.of(base.numel, len(members)), FORMATS[spec.wire_dtype]
    for member in members:
        base.check(member, geometry, wire, run_log.keys.contribution(roster.round, member.rank))
    out = np.empty(base.numel, np.float32)
    average_whole(Averaging(members, geometry, wire, FORMATS[roster.mean_dtype], None), out, run_log.store)
    return torch.from_numpy(out)
