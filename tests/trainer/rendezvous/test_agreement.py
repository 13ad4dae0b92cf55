"""How far a replica and the mean agree: the numbers a whole tensor would give, whatever way it took."""

import numpy as np
import pytest

from tests.support.gang import together
from tests.trainer.rendezvous.test_allreduce import run_round
from trainer.rendezvous import geometry
from trainer.rendezvous.agreement import Agreement
from trainer.rendezvous.object_store import ObjectStore
from trainer.rendezvous.wire import BLOCK, FORMATS, Floats

NUMEL = 5000


def tensors(size: int) -> list[Floats]:
    chance = np.random.default_rng(0)
    common = chance.standard_normal(NUMEL)
    return [(common + (rank + 1) * chance.standard_normal(NUMEL)).astype(np.float32) for rank in range(size)]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_norm_and_cosine_are_those_of_the_whole_tensors(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, sharded: bool, wire: str
) -> None:
    monkeypatch.setattr(geometry, "SHARD_FROM_ELEMENTS", 0 if sharded else 2**30)
    monkeypatch.setattr(geometry, "CHUNK_ELEMENTS", 2 * BLOCK)
    given = tensors(4)
    coded = FORMATS[wire]
    sent = [coded.decode(memoryview(coded.encode(t)), NUMEL).astype(np.float64) for t in given]
    means = run_round(store, given, wire_dtype=wire)
    mean = np.mean(sent, axis=0)
    for own, found in zip(sent, means, strict=True):
        assert bool(store.names("diloco-rdv/run/log/round_000000")[0].startswith("mean")) == sharded
        norm, length = np.linalg.norm(own), np.linalg.norm(mean)
        assert found.event.pseudo_gradient_norm == pytest.approx(norm, rel=1e-5)
        assert found.event.mean_cosine == pytest.approx(own @ mean / norm / length, rel=1e-5)
    cosines = [found.event.mean_cosine for found in means]
    assert cosines[0] != cosines[3]


def test_equal_replicas_agree_wholly_and_nothing_agrees_with_zero(store: ObjectStore) -> None:
    values = np.ones(NUMEL, np.float32)
    for found in run_round(store, [values.copy(), values.copy()]):
        assert found.event.mean_cosine == pytest.approx(1)
    assert Agreement().cosine == 0.0
    huge = Agreement()
    with np.errstate(over="ignore"):
        huge.add(values * np.float32(1e30), values * np.float32(1e30))
    assert huge.cosine == 0.0
    assert together(1, lambda _: huge.own_norm) == [np.inf]
