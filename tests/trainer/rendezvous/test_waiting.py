"""Waits end: on time, for the right reason, with the run given up for everybody."""

import pytest

from tests.support.clock import FakeTime
from tests.support.gang import standing
from tests.trainer.rendezvous.test_run_log import contribute, contribution
from trainer.rendezvous.errors import PeerLost, Stopped, Superseded
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.run_log import RunLog
from trainer.rendezvous.waiting import LIST_ABOVE, ContributionWait, Standing, WaitBounds

BOUNDS = WaitBounds(timeout_s=100, startup_timeout_s=1000, round_timeout_s=5000, poll_interval_s=1)
ROUND = 3


class Waiting:
    """Rank 0 waiting for `world_size` ranks in fake time; rank 0 itself has contributed."""

    def __init__(self, store: ObjectStore, world_size: int = 3) -> None:
        self.time = FakeTime()
        self.standing: Standing = standing(store, 0)
        self.log: RunLog = self.standing.log
        self.wait = ContributionWait(self.standing, world_size, BOUNDS, self.time.clock())
        self.arrive(0)

    def arrive(self, rank: int, round_index: int = ROUND) -> None:
        contribute(self.log, contribution(round_index=round_index, rank=rank), round_index, rank)

    def progress(self, rank: int, step: int) -> None:
        self.log.store.put(self.log.keys.progress(rank), b'{"inner_step": %d}' % step)


def test_a_wait_ends_when_all_are_there_and_knows_who_came_last(store: ObjectStore) -> None:
    w = Waiting(store)
    w.time.at(5, lambda: w.arrive(1))
    w.time.at(50, lambda: w.arrive(2))
    found, came_last = w.wait.until_complete(ROUND)
    assert sorted(found) == [0, 1, 2]
    assert came_last == [2]
    assert 50 <= w.time.now_s <= 50 + 5


def test_a_peer_that_never_comes_is_named_with_the_round_at_the_bound(store: ObjectStore) -> None:
    w = Waiting(store)
    w.arrive(1)
    with pytest.raises(
        PeerLost, match=r"rank 0 round 3: no contribution from ranks \[2\].*stood still for 100 s"
    ):
        w.wait.until_complete(ROUND)
    assert w.time.now_s == pytest.approx(100)  # not a poll later
    assert "ranks [2]" in str(w.log.abort_reason())


def test_a_peer_that_shows_life_is_waited_for_until_it_stands_still(store: ObjectStore) -> None:
    w = Waiting(store)
    w.arrive(1)
    for step, moment_s in enumerate(range(60, 600, 60)):
        w.time.at(moment_s, lambda step=step: w.progress(2, step))  # type: ignore[misc]
    with pytest.raises(PeerLost, match=r"\[2\]"):
        w.wait.until_complete(ROUND)
    assert 540 + 100 <= w.time.now_s <= 540 + 100 + 10 + 6  # seen at the next look, a tenth of the bound


def test_progress_from_before_the_wait_is_no_sign_of_life(store: ObjectStore) -> None:
    w = Waiting(store)
    w.arrive(1)
    w.progress(2, 7)
    with pytest.raises(PeerLost):
        w.wait.until_complete(ROUND)
    assert w.time.now_s == pytest.approx(100)


def test_a_relaunched_peer_gets_its_time_anew(store: ObjectStore) -> None:
    """The launcher writes a relaunched rank's progress object, so a slow instance brings nobody down."""
    w = Waiting(store)
    w.arrive(1)
    w.time.at(90, lambda: w.log.store.put(w.log.keys.progress(2), b'{"state": "relaunching"}'))
    w.time.at(180, lambda: w.arrive(2))
    assert sorted(w.wait.until_complete(ROUND)[0]) == [0, 1, 2]


@pytest.mark.parametrize("state", ["relaunching", "stopped"])
def test_a_peer_on_its_way_back_has_the_start_up_bound(store: ObjectStore, state: str) -> None:
    """Its instance may take as long to find as the first one did."""
    w = Waiting(store)
    w.arrive(1)
    w.time.at(90, lambda: w.log.store.put(w.log.keys.progress(2), b'{"state": "%s"}' % state.encode()))
    with pytest.raises(PeerLost, match=r"\[2\] stood still for 1000 s"):
        w.wait.until_complete(ROUND)
    assert 1090 <= w.time.now_s <= 1090 + 10 + 6


def test_a_peer_that_has_come_back_is_judged_as_before(store: ObjectStore) -> None:
    w = Waiting(store)
    w.arrive(1)
    w.time.at(90, lambda: w.log.store.put(w.log.keys.progress(2), b'{"state": "relaunching"}'))
    w.time.at(700, lambda: w.progress(2, 1))
    with pytest.raises(PeerLost, match=r"\[2\] stood still for 100 s"):
        w.wait.until_complete(ROUND)
    assert 800 <= w.time.now_s <= 800 + 10 + 6


@pytest.mark.parametrize("word", [b"", b"no JSON", b"[]", b"\xff"])
def test_a_progress_object_that_can_t_be_read_prolongs_nothing(store: ObjectStore, word: bytes) -> None:
    w = Waiting(store)
    w.arrive(1)
    w.log.store.put(w.log.keys.progress(2), word)
    with pytest.raises(PeerLost, match=r"\[2\] stood still for 100 s"):
        w.wait.until_complete(ROUND)


def test_life_does_not_prolong_a_wait_past_the_outermost_bound(store: ObjectStore) -> None:
    w = Waiting(store)
    w.arrive(1)
    for moment_s in range(10, 10_000, 20):
        w.time.at(moment_s, lambda moment_s=moment_s: w.progress(2, moment_s))  # type: ignore[misc]
    with pytest.raises(PeerLost, match="waited 5000 s in all"):
        w.wait.until_complete(ROUND)
    assert w.time.now_s == pytest.approx(5000)


def test_the_first_round_has_the_start_up_bound(store: ObjectStore) -> None:
    w = Waiting(store)
    w.arrive(0, 0)
    with pytest.raises(PeerLost, match=r"round 0: no contribution from ranks \[1, 2\].*1000 s"):
        w.wait.until_complete(0)
    assert w.time.now_s == pytest.approx(1000)


def test_an_abort_ends_a_wait_within_a_poll(store: ObjectStore) -> None:
    w = Waiting(store)
    w.time.at(40, lambda: w.log.abort(by="rank 2", reason="gave up", round_index=3, missing=[1]))
    with pytest.raises(PeerLost, match="rank 0 round 3: the run was given up by rank 2: gave up"):
        w.wait.until_complete(ROUND)
    assert 40 <= w.time.now_s <= 40 + 5


def test_a_newer_claim_ends_a_wait(store: ObjectStore) -> None:
    w = Waiting(store)
    w.time.at(40, lambda: w.log.take_claim(0))
    with pytest.raises(Superseded, match="process 0 of this rank has been followed by process 1"):
        w.wait.until_complete(ROUND)


def test_a_wish_to_stop_ends_a_wait(store: ObjectStore) -> None:
    w = Waiting(store)
    w.time.at(40, w.standing.stop.set)
    with pytest.raises(Stopped):
        w.wait.until_complete(ROUND)
    assert w.time.now_s <= 40 + 5


def test_polls_start_quick_slow_down_and_jitter(store: ObjectStore) -> None:
    w = Waiting(store)
    w.time.at(90, lambda: (w.arrive(1), w.arrive(2)))
    w.wait.until_complete(ROUND)
    pauses = w.time.sleeps
    assert 0.7 <= pauses[0] <= 1.0
    assert max(pauses) <= 5
    assert len(set(pauses)) == len(pauses)


def test_many_missing_peers_are_looked_for_by_one_list(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = Waiting(store, world_size=LIST_ABOVE + 3)
    looked: list[int] = []
    original = RunLog.contributions

    def counted(log: RunLog, round_index: int, ranks: list[int]):  # type: ignore[no-untyped-def]
        looked.extend(ranks)
        return original(log, round_index, ranks)

    monkeypatch.setattr(RunLog, "contributions", counted)
    w.arrive(5)
    w.time.at(10, lambda: [w.arrive(rank) for rank in range(LIST_ABOVE + 3)])
    w.wait.until_complete(ROUND)
    assert sorted(looked) == list(range(LIST_ABOVE + 3))  # each once: no GET for one that isn't there
