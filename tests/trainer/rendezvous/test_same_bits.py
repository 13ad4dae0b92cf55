"""Every rank ends a round with the same bits, those of the mean computed plainly, whatever happens."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import s3_faults
from tests.support.fault_s3 import FaultS3
from tests.support.gang import base, exchange, together
from tests.support.plain_mean import Floats, as_received, plain_mean
from tests.support.s3_faults import Fault
from tests.support.stores import on_fault_server
from trainer.layout import RunLayout
from trainer.rendezvous import geometry, sharded
from trainer.rendezvous.geometry import Geometry
from trainer.rendezvous.payload import FETCH_ATTEMPTS

GENERAL_ENDS = (".json", ".bin")  # each is asked for in every round, so a fault there is sure to happen
KEY_ENDS = (*GENERAL_ENDS, "roster.json", "rank_0001.json", "rank_0000.c0.bin", "mean_0000.json")
TROUBLE = {
    "GET": (s3_faults.REFUSED_500, s3_faults.REFUSED_503, s3_faults.RESET, s3_faults.RESET_MID_BODY),
    "PUT": (
        s3_faults.REFUSED_409, s3_faults.REFUSED_500, s3_faults.REFUSED_503, s3_faults.RESET,
        s3_faults.LOST_ANSWER, s3_faults.STORED_503,
    ),
}  # fmt: skip
DAMAGE = (s3_faults.FLIPPED_BIT, s3_faults.TRUNCATED)


@dataclass(frozen=True)
class Round:
    """What the ranks exchange, and how: all that may vary."""

    size: int
    numel: int
    seed: int
    wire: str
    mean_wire: str
    chunk: int
    sharded: bool
    take_over_s: float  # 0: everybody makes every slice that it finds missing
    order: Sequence[int]  # in which ranks come
    late: Sequence[bool]  # whether the n-th of them waits for the contribution of the one before
    faults: Sequence[Fault]

    def tensors(self) -> list[Floats]:
        chance = np.random.default_rng(self.seed)
        scales = 10.0 ** chance.integers(-6, 7, self.size)
        return [(chance.standard_normal(self.numel) * scale).astype(np.float32) for scale in scales]


@st.composite
def faults(draw: st.DrawFn) -> list[Fault]:
    """Trouble that a client's retry ends, and no more damage than a chunk is fetched again for."""

    def fault(verb: str, kinds: Sequence[str], times: int) -> Fault:
        end, after = draw(st.sampled_from(KEY_ENDS)), draw(st.integers(0, 3))
        allowed = [kind for kind in kinds if kind != s3_faults.REFUSED_409 or not end.endswith(".bin")]
        return Fault(verb, end, draw(st.sampled_from(allowed)), times=times, after=after)

    verbs = draw(st.lists(st.sampled_from(["GET", "PUT"]), max_size=4))
    trouble = [fault(verb, TROUBLE[verb], draw(st.integers(1, 3))) for verb in verbs]
    return trouble + [fault("GET", DAMAGE, 1) for _ in range(draw(st.integers(0, FETCH_ATTEMPTS - 1)))]


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    size = draw(st.integers(2, 5))
    return Round(
        size=size,
        numel=draw(st.integers(1, 3000)),
        seed=draw(st.integers(0, 2**31)),
        wire=draw(st.sampled_from(["fp32", "bf16", "int8", "int4"])),
        mean_wire=draw(st.sampled_from(["fp32", "bf16"])),
        chunk=draw(st.sampled_from([256, 512, 2**22])),
        sharded=draw(st.booleans()),
        take_over_s=draw(st.sampled_from([0.0, 15.0])),
        order=draw(st.permutations(range(size))),
        late=draw(st.lists(st.booleans(), min_size=size, max_size=size)),
        faults=draw(faults()),
    )


@settings(max_examples=150, deadline=None)
@given(rounds())
def test_every_rank_has_the_bits_of_the_mean_computed_plainly(what: Round) -> None:
    """In every format, whole or in slices, whoever is late, whatever S3 does that it may do."""
    tensors = what.tensors()
    expected = plain_mean(tensors, what.wire, what.mean_wire)
    happening = [replace(fault) for fault in what.faults]
    for values in _exchange(what, tensors, happening):
        assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))
    for planned, met in zip(what.faults, happening, strict=True):
        assert met.fired > 0 or planned.after > 0 or planned.key_end not in GENERAL_ENDS


def _exchange(what: Round, tensors: list[Floats], happening: list[Fault]) -> list[Floats]:
    """The round on a server to which this happens; the values every rank has in the end."""
    failed = threading.Event()
    with FaultS3(happening) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "CHUNK_ELEMENTS", what.chunk)
        patch.setattr(geometry, "SHARD_FROM_ELEMENTS", 0 if what.sharded else 2**40)
        patch.setattr(sharded, "TAKE_OVER_S", what.take_over_s)
        store = on_fault_server(server, retry_s=600, retries=100)

        def work(rank: int) -> Floats:
            place = what.order.index(rank)
            reduce = exchange(store, rank, what.size, wire_dtype=what.wire, mean_dtype=what.mean_wire)
            reduce.standing = replace(reduce.standing, stop=failed)
            try:
                if place and what.late[place]:
                    earlier = RunLayout("run").contribution(0, what.order[place - 1])
                    server.wait_for(earlier, unless=failed.is_set)
                return reduce.run(0, tensors[rank].copy(), base(what.numel)).values
            except BaseException:
                failed.set()  # nobody waits for a rank that is no more
                with server.lock:
                    server.lock.notify_all()
                raise

        return together(what.size, work)


def test_a_sum_in_another_order_would_have_other_bits() -> None:
    """The others see rank 0 last, after many looks in vain, and add it first nevertheless."""
    tensors = [np.array([value], np.float32) for value in (1e8, -1e8, 1.0)]
    assert not np.array_equal(plain_mean(tensors), plain_mean([tensors[1], tensors[2], tensors[0]]))
    keys = [RunLayout("run").contribution(0, rank) for rank in range(3)]
    with FaultS3() as server:
        store = on_fault_server(server)

        def work(rank: int) -> Floats:
            reduce = exchange(store, rank, 3)
            if rank > 0:
                return reduce.run(0, tensors[rank].copy(), base(1)).values
            with server.lock:
                assert server.lock.wait_for(
                    lambda: {*keys[1:]} <= {*server.objects} and server.requests.count(("GET", keys[0])) > 20,
                    timeout=60,
                )
            reduce._contributor.contribute(0, tensors[0].copy(), base(1), Geometry.of(1, 3))
            return plain_mean(tensors)

        for values in together(3, work):
            assert np.array_equal(values, plain_mean(tensors))


@pytest.mark.parametrize("wire", ["bf16", "int8", "int4"])
def test_a_format_loses_what_the_plain_one_keeps(wire: str) -> None:
    """Guards the first test: its formats are told apart."""
    values = np.linspace(-1, 1, 300, dtype=np.float32)
    assert not np.array_equal(as_received(values, wire), values)
