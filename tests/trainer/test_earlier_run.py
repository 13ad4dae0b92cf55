"""A run that resumes an earlier one starts from exactly what that one ended with."""

import json
from typing import Any

import obstore
import pytest
import torch

from tests.support.gang import manager, together
from tests.support.toy import Settings, Toy, adamw, loss
from trainer.diloco import DiLoCoLoop, make_diloco_outer_loop
from trainer.earlier_run import publish_last_state
from trainer.rendezvous.errors import AbsentObject, ForeignObject
from trainer.rendezvous.manager import ObjectStoreManager
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.run_log import RunLog
from trainer.run_file import create_run
from trainer.run_spec import InvalidRunParameters, RunSpec, parse

S = Settings(fragments=2, delay=1, total_steps=12)
PARAMETERS: dict[str, Any] = {
    "sync_every": S.sync_every, "fragments": 2, "fragment_sync_delay": 1, "total_steps": 12,
    "outer_lr": S.outer_lr, "outer_momentum": S.outer_momentum, "wire_dtype": "int8", "mean_dtype": "bf16",
}  # fmt: skip


class Member:
    """One replica of a run, as the entrypoint and a trainer function make it."""

    def __init__(self, store: ObjectStore, run_id: str, spec: RunSpec, rank: int, seed: int) -> None:
        self.rank = rank
        self.manager: ObjectStoreManager = manager(
            store,
            rank,
            spec.n_replicas,
            run_id=run_id,
            wire_dtype=spec.wire_dtype,
            mean_dtype=spec.mean_dtype,
        )
        self.manager.resume_from = spec.resume_from
        self.model = Toy(seed)
        self.optimizer = adamw(self.model)
        self.loop: DiLoCoLoop = make_diloco_outer_loop(
            manager=self.manager, model=self.model, inner_optimizer=self.optimizer,
            sync_every=spec.sync_every, outer_lr=spec.outer_lr, outer_momentum=spec.outer_momentum,
            fragments=spec.fragments, fragment_sync_delay=spec.fragment_sync_delay,
        )  # fmt: skip

    def train(self, steps: int) -> None:
        with self.loop:
            for step in range(steps):
                self.optimizer.zero_grad()
                loss(self.model, self.rank, step).backward()
                self.optimizer.step()

    def shared(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and momentum by parameter name."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for state in self.manager.fragment_states().values():
            for index, (name, weight) in enumerate(state["original_parameters"].items()):
                slot = state["outer_optimizer"]["state"][index]
                found[name] = {"weight": weight, "momentum": slot["momentum_buffer"].clone()}
        return found


def earlier(store: ObjectStore, steps: int = 10, run_id: str = "old", **parameters: Any) -> Member:
    """A run of two replicas that trained for so many inner steps; its rank 0."""
    spec = create_run(store, run_id, parse(PARAMETERS | parameters)).spec

    def work(rank: int) -> Member:
        member = Member(store, run_id, spec, rank, seed=rank)
        member.train(steps)
        return member

    return together(2, work)[0]


def later(store: ObjectStore, run_id: str = "new", **parameters: Any) -> list[Member]:
    spec = create_run(store, run_id, parse({**PARAMETERS, "resume_from": "old", **parameters})).spec
    return together(spec.n_replicas, lambda rank: Member(store, run_id, spec, rank, seed=7 + rank))


def same(first: Member, second: Member) -> bool:
    ours, theirs = first.shared(), second.shared()
    assert ours.keys() == theirs.keys()
    return all(torch.equal(ours[n][kind], theirs[n][kind]) for n in ours for kind in ("weight", "momentum"))


def source(store: ObjectStore, run_id: str = "new") -> Any:
    return json.loads(store.get(RunLog(store, run_id).keys.initial))["source"]


def test_a_run_given_up_is_rebuilt_from_its_log_by_another_number_of_replicas(store: ObjectStore) -> None:
    """Five rounds of two fragments; three replicas of one fragment go on."""
    old = earlier(store)
    assert old.loop.rounds == 5
    made = later(store, n_replicas=3, fragments=1, fragment_sync_delay=0, wire_dtype="fp32")
    for member in made:
        assert same(member, old)
        assert member.loop.rounds == 0
    expected = {"run_id": "old", "round": 5, "weights_hash": old.manager.weights_hash()}
    assert source(store) == expected
    together(3, lambda rank: made[rank].train(4))
    assert len({member.manager.weights_hash() for member in made}) == 1
    assert not same(made[0], old)


def test_a_finished_run_is_resumed_when_its_payloads_have_expired(store: ObjectStore) -> None:
    old = earlier(store, steps=12)
    publish_last_state(old.manager)
    obstore.delete(store._store, store.keys("diloco-data/old"))
    assert all(same(member, old) for member in later(store))
    assert source(store) == {"run_id": "old", "round": 6, "weights_hash": old.manager.weights_hash()}


def test_without_its_payloads_a_run_given_up_can_not_be_resumed(store: ObjectStore) -> None:
    earlier(store)
    obstore.delete(store._store, store.keys("diloco-data/old/round_000001"))
    with pytest.raises(AbsentObject, match=r"resume_from old: .*be rebuilt: round 1 rank 0: .* is gone"):
        later(store)


def test_the_source_is_resolved_once(store: ObjectStore) -> None:
    """Replicas that come later take what stands, whatever the earlier run has done since."""
    old = earlier(store, steps=4)
    made = later(store)
    obstore.delete(store._store, store.keys("diloco-data/old"))
    spec = parse({**PARAMETERS, "resume_from": "old"})
    assert same(Member(store, "new", spec, 1, seed=3), old)
    assert same(made[0], old)


def test_a_resumed_run_is_resumed_in_its_turn(store: ObjectStore) -> None:
    earlier(store, steps=4)
    second = later(store)
    together(2, lambda rank: second[rank].train(6))
    third = later(store, "newer", resume_from="new")
    assert same(third[0], second[0])
    assert source(store, "newer")["round"] == 3


def test_a_log_that_does_not_lead_to_its_weights_is_refused(store: ObjectStore) -> None:
    """run.json says another outer learning rate than the trainer used."""
    earlier(store)
    key = RunLog(store, "old").keys.run_file
    document = json.loads(store.get(key))
    document["parameters"]["outer_lr"] = 0.5
    store.put(key, json.dumps(document).encode())
    with pytest.raises(ForeignObject, match="resume_from old round 0: the log doesn't lead"):
        later(store)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"resume_from": "nobody"}, "resume_from: there is no such run: no memory://store/diloco-rdv/nobody"),
        ({"resume_from": "new"}, "resume_from: new is this run itself"),
        ({"resume_from": "a/b"}, "resume_from: must be a string"),
    ],
)
def test_a_run_that_could_not_start_is_refused_before_it_is_recorded(
    store: ObjectStore, parameters: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRunParameters, match=text):
        create_run(store, "new", parse(parameters))
    assert store.find(RunLog(store, "new").keys.run_file) is None


def test_a_run_that_ended_before_its_first_step_has_nothing_to_resume(store: ObjectStore) -> None:
    create_run(store, "old", parse({}))
    with pytest.raises(InvalidRunParameters, match="run old ended before its first inner step"):
        later(store)
