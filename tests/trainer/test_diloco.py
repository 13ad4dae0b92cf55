"""Replicas through the store against DiLoCo written out plainly, bit for bit."""

import threading

import pytest
import torch

from tests.support.gang import together
from tests.support.toy import Settings, Toy, adamw, loss, replica
from trainer.fragments import split_fragments
from trainer.outer_optimizer import OuterNesterov
from trainer.rendezvous.errors import RendezvousError
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.rendezvous.state_hash import weights_hash

Weights = dict[str, torch.Tensor]


def plain_diloco(size: int, s: Settings, seed: int = 0) -> tuple[Weights, list[Weights]]:
    """DiLoCo (arXiv:2311.08105, Algorithm 1), in fragments with overlap (arXiv:2501.18512), in one process.

    Each inner step is an AdamW step on every replica. A round belongs to one fragment: `delay`
    steps before it is due, each replica's pseudo-gradient (shared minus local) is noted; when due,
    the shared weights take a Nesterov step along the mean, and the local ones are mixed in by alpha.
    Returns the shared weights and each replica's local ones.
    """
    models = [Toy(seed) for _ in range(size)]
    optimizers = [adamw(model) for model in models]
    locals_ = [dict(model.named_parameters()) for model in models]
    shared = {name: p.detach().clone() for name, p in models[0].named_parameters()}
    momentum = {name: torch.zeros_like(w) for name, w in shared.items()}
    fragments = [
        [name for name, _ in part.named_parameters()] for part in split_fragments(models[0], s.fragments)
    ]
    sent: list[Weights] = []
    for step in range(s.total_steps):
        for rank in range(size):
            optimizers[rank].zero_grad()
            loss(models[rank], rank, step).backward()
            optimizers[rank].step()
        with torch.no_grad():
            fragment = fragments[(step // s.per_round) % s.fragments]
            position = step % s.per_round + 1
            if position == s.per_round - s.delay:
                sent = [{name: shared[name] - params[name] for name in fragment} for params in locals_]
            if position == s.per_round:
                for name in fragment:
                    total = sent[0][name]
                    for contribution in sent[1:]:
                        total = total + contribution[name]
                    mean = total / size
                    momentum[name] = momentum[name] * s.outer_momentum + mean
                    shared[name] = shared[name] - (momentum[name] * s.outer_momentum + mean) * s.outer_lr
                    for params in locals_:
                        params[name].copy_(torch.lerp(shared[name], params[name], s.alpha))
    return shared, [{name: p.detach().clone() for name, p in params.items()} for params in locals_]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "s",
    [
        Settings(),
        Settings(delay=2),
        Settings(fragments=2),
        Settings(fragments=2, delay=1),
        Settings(fragments=2, delay=1, alpha=0.5),
        Settings(outer_lr=1.0, outer_momentum=0.0),
    ],
    ids=lambda s: f"fragments={s.fragments},delay={s.delay},alpha={s.alpha},momentum={s.outer_momentum}",
)
def test_replicas_through_the_store_equal_plain_diloco_to_the_last_bit(size: int, s: Settings) -> None:
    store = open_store("memory://")

    def work(rank: int) -> tuple[Weights, Weights, str]:
        r = replica(store, rank, size, s, seed=0)
        r.train(s.total_steps, s)
        local = {name: p.detach().clone() for name, p in r.model.named_parameters()}
        return local, r.shared(), r.manager.weights_hash()

    shared, locals_ = plain_diloco(size, s)
    for rank, (local, ours, hash_) in enumerate(together(size, work)):
        for name in shared:
            assert torch.equal(ours[name], shared[name]), f"rank {rank} {name}: shared weights differ"
            assert torch.equal(local[name], locals_[rank][name]), f"rank {rank} {name}: local weights differ"
        assert hash_ == weights_hash(shared.items())


def test_the_reference_learns_and_its_settings_matter() -> None:
    """Guards the test above: equal results prove nothing if nothing happens."""
    results = [
        plain_diloco(2, s)[0]
        for s in (Settings(), Settings(delay=2), Settings(fragments=2), Settings(outer_lr=1))
    ]
    hashes = {weights_hash(r.items()) for r in results}
    assert len(hashes) == 4
    start, end = Toy(0), Toy(0)
    end.load_state_dict(results[0])
    assert loss(end, 0, 99) < loss(start, 0, 99)


def test_rounds_come_after_every_sync_every_steps(store: ObjectStore) -> None:
    """Outer steps at H and 2H, not at H + 1."""
    s, seen = Settings(total_steps=12, sync_every=4), []
    r = replica(store, 0, 1, s)
    r.train(12, s, before=lambda step: seen.append((step, r.loop.rounds)))
    assert [step for step, rounds in seen if rounds > dict(seen).get(step - 1, 0)] == [4, 8]
    assert r.loop.rounds == 3


def test_shared_weights_are_shown_and_taken_away_again(store: ObjectStore) -> None:
    s = Settings()
    r = replica(store, 0, 1, s)
    r.train(6, s)  # two steps past the first round
    local = {name: p.detach().clone() for name, p in r.model.named_parameters()}
    with r.loop.shared_weights():
        inside = weights_hash(r.model.named_parameters())
    assert inside == r.manager.weights_hash() != weights_hash(local.items())
    assert weights_hash(r.model.named_parameters()) == weights_hash(local.items())


@pytest.mark.parametrize("s", [Settings(), Settings(fragments=2), Settings(fragments=2, delay=1)], ids=str)
def test_a_killed_replica_comes_back_at_the_head_and_all_end_equal(s: Settings) -> None:
    """Rank 1 dies in its third round, before it sends; its next process folds the log and goes on from there."""
    store = open_store("memory://")
    size = 2

    def dying(rank: int) -> None:
        first = replica(store, rank, size, s)

        def before(step: int) -> None:
            if step == 2 * s.per_round + (s.delay == 0):
                first.manager._exchange.standing.stop.set()
                raise RendezvousError("killed")

        with pytest.raises(RendezvousError, match="killed"):
            first.train(s.total_steps, s, before)

    def work(rank: int) -> tuple[int, str]:
        if rank == 1:
            dying(rank)
        r = replica(store, rank, size, s)
        started = r.loop.rounds
        if rank == 1:  # the shared state is the fold of the log, momentum included
            assert weights_hash(r.shared().items()) == weights_hash(_fold(store, size, s, started).items())
        r.train(s.total_steps, s)
        return started, r.manager.weights_hash()

    (first_start, first_hash), (second_start, second_hash) = together(size, work)
    assert (first_start, second_start) == (0, 2)
    assert (
        first_hash == second_hash == weights_hash(_fold(store, size, s, s.total_steps // s.per_round).items())
    )


def _fold(store: ObjectStore, size: int, s: Settings, rounds: int) -> Weights:
    """The shared weights recomputed from nothing but the log: initial weights, then each mean."""
    import safetensors.torch

    from trainer.rendezvous.documents import InitialWeights
    from trainer.rendezvous.run_log import RunLog

    log = RunLog(store, "run")
    initial = InitialWeights.decode(store.get(log.keys.initial), "initial")
    model = Toy()
    model.load_state_dict(safetensors.torch.load(store.get(initial.payload.key)))
    parts = split_fragments(model, s.fragments)
    outer = [
        OuterNesterov([p for _, p in part.named_parameters()], lr=s.outer_lr, momentum=s.outer_momentum)
        for part in parts
    ]
    for index in range(rounds):
        roster = log.roster(index)
        assert roster is not None
        flats = [
            torch.frombuffer(bytearray(store.get(m.payload.key)), dtype=torch.float32)
            for m in log.members_of(roster)
        ]
        mean = flats[0].clone()
        for flat in flats[1:]:
            mean += flat
        mean /= size
        offset = 0
        for _, p in parts[index % s.fragments].named_parameters():
            p.grad = mean[offset : offset + p.numel()].view_as(p)
            offset += p.numel()
        outer[index % s.fragments].step()
    return {name: p.detach() for name, p in model.named_parameters()}


def test_a_restart_after_the_last_round_ends_at_once_with_the_same_weights(store: ObjectStore) -> None:
    s = Settings()
    first = replica(store, 0, 1, s)
    first.train(s.total_steps, s)
    second = replica(store, 0, 1, s)
    second.train(s.total_steps, s)
    assert second.loop.rounds == 3
    assert second.manager.weights_hash() == first.manager.weights_hash()


def test_an_exchange_in_flight_does_not_hold_up_inner_steps(store: ObjectStore) -> None:
    """With a delay the peer may come late: the steps in between are taken without it."""
    s = Settings(total_steps=4, sync_every=4, delay=3)
    r = replica(store, 0, 2, s)
    reached = threading.Event()

    def peer() -> None:
        other = replica(store, 1, 2, s)
        assert reached.wait(60)
        other.train(4, s)

    thread = threading.Thread(target=peer)
    thread.start()
    # Step 1 sends; steps 2 and 3 happen while rank 1 has sent nothing; step 4 waits for it.
    r.train(4, s, before=lambda step: reached.set() if step == 3 else None)
    thread.join(60)
    assert r.loop.rounds == 1
