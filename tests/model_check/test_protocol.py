"""The round protocol holds whatever happens in between, and no longer does without any one of its rules.

Exhaustive: every order of steps, and every place for every fault, within the settings below. The
states of a setting are counted, so that a model that has lost its faults doesn't pass by doing
nothing. `pytest -s` prints the shortest trace to each counterexample.
"""

from importlib import import_module
from operator import attrgetter

import pytest

from tests.model_check.explorer import explore
from tests.model_check.process import STEPS
from tests.model_check.state import Faults, Rule, Setting

# States that there are at least; well below what there are, well above what is left without a fault.
HOLDS = [
    pytest.param(2, 3, Faults(crashes=1), False, 8_000, id="2-ranks-crash"),
    pytest.param(2, 2, Faults(crashes=1, doubts=1), False, 40_000, id="2-ranks-crash-doubtful-put"),
    pytest.param(2, 2, Faults(doubles=1, doubts=1), False, 80_000, id="2-ranks-two-lives-doubtful-put"),
    pytest.param(2, 2, Faults(crashes=1, doubles=1), False, 240_000, id="2-ranks-crash-two-lives"),
    pytest.param(2, 2, Faults(crashes=1, flips=1, damages=1), False, 28_000, id="2-ranks-crash-damage"),
    pytest.param(2, 2, Faults(crashes=1, hasty=1), False, 5_000, id="2-ranks-crash-hasty"),
    pytest.param(3, 2, Faults(crashes=1), False, 28_000, id="3-ranks-crash"),
    pytest.param(3, 1, Faults(crashes=1, doubts=1), False, 70_000, id="3-ranks-crash-doubtful-put"),
    pytest.param(3, 1, Faults(doubles=1), False, 11_000, id="3-ranks-two-lives"),
    pytest.param(3, 2, Faults(flips=1), False, 2_500, id="3-ranks-flipped-bit"),
    pytest.param(3, 1, Faults(crashes=1), True, 240_000, id="3-ranks-slices-crash"),
]

SAME_MEAN = "all apply the same mean of the same roster"
FOLD = "shared weights are the fold of the log"
ONCE = "no key is written twice"
PUBLISHED = "published before applied"

# Without this rule, under these faults, this invariant breaks; with it, it holds there.
BREAKS = [
    (Rule.CLAIM_IN_KEY, ONCE, Faults(crashes=1)),
    (Rule.PAYLOAD_FIRST, "a manifest's bytes are in the store", Faults()),
    (Rule.CREATE_ONLY, ONCE, Faults(crashes=1)),
    (Rule.DOUBTFUL_PUT, ONCE, Faults(doubts=1, doubles=1)),  # two processes believe to hold a claim
    (Rule.DOUBTFUL_PUT, PUBLISHED, Faults(doubts=1)),  # a 409 passes for a roster
    (Rule.ONE_ROSTER, SAME_MEAN, Faults()),
    (Rule.RANK_ORDER, SAME_MEAN, Faults()),
    (Rule.PUBLISHED, PUBLISHED, Faults()),
    (Rule.COMMITTED_IS_APPLIED, FOLD, Faults()),
    (Rule.CATCH_UP, FOLD, Faults(crashes=1)),
    (Rule.BASE_HASH, FOLD, Faults(flips=1)),
    (Rule.VERIFIED, SAME_MEAN, Faults(damages=1)),
    (Rule.VERIFIED, FOLD, Faults(crashes=1)),  # of a torn checkpoint
    (Rule.BOUNDED_WAIT, "the run ends", Faults(crashes=2)),
]


# A name that is gone means that the protocol has changed: look whether its model has to.
STANDS_FOR = {
    "claim": "rendezvous.run_log:RunLog.take_claim",
    "checkpoint": "checkpoint:Checkpoints.write",
    "restore": "rendezvous.manager:ObjectStoreManager.catch_up",
    "round": "rendezvous.allreduce:ObjectStoreAllReduce.run",
    "payload": "rendezvous.contributing:Contributor.contribute",
    "contribute": "rendezvous.run_log:RunLog.contribute",
    "commit": "rendezvous.waiting:ContributionWait.until_complete",
    "average": "rendezvous.averaging:average_whole",
    "slice": "rendezvous.sharded:ShardedMean._compute",
    "announce": "rendezvous.run_log:RunLog.announce_slice",
    "slices": "rendezvous.sharded:ShardedMean.run",
}


@pytest.mark.parametrize(("ranks", "rounds", "faults", "sharded", "floor"), HOLDS)
def test_the_protocol_holds(ranks: int, rounds: int, faults: Faults, sharded: bool, floor: int) -> None:
    found = explore(Setting(ranks, rounds, faults, sharded))
    assert found.violation is None, f"\n{found}"
    assert found.states >= floor
    assert found.ends > 1, "no fault has made a difference"


@pytest.mark.parametrize(
    ("rule", "invariant", "faults"),
    [pytest.param(*row, id=f"{row[0].number}-{row[0].name.lower()}-{row[1].split()[0]}") for row in BREAKS],
)
def test_without_rule_n_a_counterexample_is_found(rule: Rule, invariant: str, faults: Faults) -> None:
    setting = Setting(2, 2, faults, sharded=rule is Rule.PUBLISHED, without=rule)
    found = explore(setting, invariant)
    print(f"\nwithout rule {rule.value}\n{found}")
    assert found.violation is not None
    assert found.violation.invariant == invariant
    # The number of steps is that of the shortest trace, so a longer one would be another bug's.
    assert len(found.trace) <= 16


def test_every_rule_is_left_out_once() -> None:
    assert {rule for rule, _, _ in BREAKS} == set(Rule)
    assert {rule.number for rule in Rule} == set(range(1, 12))


def test_without_faults_there_is_one_end() -> None:
    found = explore(Setting(3, 2, Faults()))
    assert (found.violation, found.ends) == (None, 1)


@pytest.mark.parametrize(("step", "function"), sorted(STANDS_FOR.items()))
def test_each_step_stands_for_a_function_that_exists(step: str, function: str) -> None:
    module, _, name = function.partition(":")
    assert callable(attrgetter(name)(import_module(f"trainer.{module}")))
    assert name.split(".")[-1] in (STEPS[step].__doc__ or ""), "the step's docstring names it"
