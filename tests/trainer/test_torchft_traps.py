"""torchft 0.2.0's traps, one test each: what it would do to us, and that we don't let it.

Several rest on torchft's private names; a new version of it must pass here first.
"""

import importlib.metadata

import pytest
import torch
from torch import nn
from torchft.local_sgd import DiLoCo

from tests.support.gang import manager, together
from tests.support.toy import Settings, Toy, adamw, loss, replica
from trainer.diloco import make_diloco_outer_loop
from trainer.rendezvous.errors import PeerLost
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.rendezvous.state_hash import weights_hash


def test_the_version_these_traps_were_found_in() -> None:
    assert importlib.metadata.version("torchft") == "0.2.0"


def test_fragments_take_turns_from_the_first_on(store: ObjectStore) -> None:
    """Advancing the step in start_quorum, as the real Manager does not, would start at fragment 1."""
    s = Settings(fragments=2)
    replica(store, 0, 1, s).train(s.total_steps, s)
    log = manager(store, 0, 1).log
    found = [log.contributions(index, [0]).get(0) for index in range(6)]
    assert [entry[0].fragment for entry in found if entry] == [0, 1, 0, 1, 0, 1]


def test_an_error_in_wait_leaves_the_optimizer_step_and_ends_the_replica(store: ObjectStore) -> None:
    """torchft is unusable after it, so nothing catches it: the process ends and is relaunched."""
    s = Settings(total_steps=4)
    r = replica(store, 0, 2, s)
    r.manager.log.abort(by="rank 1", reason="gone", round_index=0, missing=[1])
    with pytest.raises(PeerLost, match="gone"):
        r.train(4, s)
    assert r.loop.rounds == 0


def test_each_fragment_has_an_outer_optimizer_of_its_own(store: ObjectStore) -> None:
    """A single one would apply the inner gradients of the other fragments as if they were means."""
    s = Settings(total_steps=2, sync_every=4, fragments=2)
    r = replica(store, 0, 1, s)
    start = r.shared()
    r.train(2, s)  # one round: fragment 0 only
    first = dict(r.loop._fragments[0].named_parameters())
    end = r.shared()
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert moved == first.keys()
    assert len({id(f._outer_optimizer) for f in r.loop._diloco._fragments}) == 2


def test_a_round_is_one_object_a_rank(store: ObjectStore) -> None:
    """By default torchft all-reduces each parameter by itself: six objects here."""
    s = Settings(total_steps=8)
    together(2, lambda rank: replica(store, rank, 2, s).train(8, s))
    assert len(store.keys("diloco-data/run")) == 2 * 2


def test_no_tensor_is_lost_to_a_bucket(store: ObjectStore) -> None:
    """torchft drops tensors when buckets don't pack exactly; ours holds a whole fragment of 1.2 MiB."""
    model = nn.Sequential(nn.Linear(500, 600), nn.Linear(600, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = make_diloco_outer_loop(
        manager=manager(store, 0, 1),
        model=model,
        inner_optimizer=optimizer,
        sync_every=1,
        outer_lr=1,
        outer_momentum=0,
    )
    before = [p.detach().clone() for p in model.parameters()]
    with loop:
        model(torch.ones(1, 500)).sum().backward()
        optimizer.step()
    loop.load_shared()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_after_a_round_no_parameter_is_left_unsynchronised() -> None:
    """A parameter in no fragment would never sync, with no error."""
    store, s = open_store("memory://"), Settings(total_steps=4)

    def work(rank: int) -> str:
        r = replica(store, rank, 2, s)
        r.train(4, s)
        return weights_hash(r.model.named_parameters())  # the local weights, all of them

    assert len(set(together(2, work))) == 1


def test_parameters_below_float32_are_refused(store: ObjectStore) -> None:
    """In bfloat16 an outer step of 1e-4 is lost entirely."""
    model = Toy().to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"6 parameters are not float32, first layers.0.bias"):
        make_diloco_outer_loop(
            manager=manager(store, 0, 1), model=model, inner_optimizer=adamw(model), sync_every=2
        )


def test_leaving_the_context_does_not_flush_so_the_shared_copy_is_what_counts() -> None:
    store, s = open_store("memory://"), Settings(total_steps=4)

    def work(rank: int) -> tuple[str, str]:
        r = replica(store, rank, 2, s)
        r.train(6, s)  # two steps of the next round, never exchanged
        local = weights_hash(r.model.named_parameters())
        r.loop.load_shared()
        return local, weights_hash(r.model.named_parameters())

    (local_0, shared_0), (local_1, shared_1) = together(2, work)
    assert local_0 != local_1
    assert shared_0 == shared_1


def test_the_shared_weights_are_agreed_before_torchft_copies_them() -> None:
    """Constructing DiLoCo takes the current weights as the shared ones: other random ones would stay."""
    store = open_store("memory://")
    first, second = replica(store, 0, 2, Settings()), replica(store, 1, 2, Settings())
    assert weights_hash(Toy(0).named_parameters()) != weights_hash(Toy(1).named_parameters())
    assert first.manager.weights_hash() == second.manager.weights_hash()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"fragment_sync_delay": -1}, "fragment_sync_delay -1 must be from 0 to below 4"),
        ({"fragment_sync_delay": 4}, "fragment_sync_delay 4 must be from 0 to below 4"),
        ({"fragments": 3}, "sync_every 4 must be a positive multiple of fragments 3"),
        ({"sync_every": 0}, "sync_every 0 must be a positive multiple"),
    ],
)
def test_impossible_schedules_are_refused_in_words(
    store: ObjectStore, wrong: dict[str, int], text: str
) -> None:
    """torchft accepts a delay of -1 in silence, and states the divisibility backwards."""
    model = Toy()
    arguments = {"sync_every": 4} | wrong
    with pytest.raises(ValueError, match=text):
        make_diloco_outer_loop(
            manager=manager(store, 0, 1),
            model=model,
            inner_optimizer=adamw(model),
            **arguments,  # type: ignore[arg-type]
        )


def test_gradient_accumulation_and_a_schedule_count_optimizer_steps(store: ObjectStore) -> None:
    s = Settings(total_steps=8, sync_every=4)
    r = replica(store, 0, 1, s)
    schedule = torch.optim.lr_scheduler.LambdaLR(r.optimizer, lambda step: 1 / (1 + step))
    with r.loop:
        for step in range(8):
            for micro in range(3):
                loss(r.model, 0, 10 * step + micro).backward()
            r.optimizer.step()
            r.optimizer.zero_grad()
            schedule.step()
    assert r.loop.rounds == 2


def test_torchft_still_has_the_private_names_that_we_use() -> None:
    assert callable(DiLoCo._restore_parameters)
    model = Toy()
    r = replica(open_store("memory://"), 0, 1, Settings())
    assert len(r.loop._diloco._fragments) == 1
    assert r.loop._diloco._fragments[0].original_parameters.keys() == dict(model.named_parameters()).keys()
