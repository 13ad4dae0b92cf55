"""What a round leaves: a line, a row in the bucket, TensorBoard events."""

import json
import logging
import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from tests.support.gang import manager
from trainer.metrics import RoundMetrics, tensorboard_of
from trainer.rendezvous.object_store import ObjectStore

KEY = "diloco-out/run/metrics/rank_0000.jsonl"


def made(store: ObjectStore) -> RoundMetrics:
    its = manager(store, 0, 1)
    its.later = lambda write: write()  # type: ignore[method-assign, assignment, return-value]
    return RoundMetrics(its, 0)


def rows(store: ObjectStore) -> list[dict[str, float]]:
    return [json.loads(line) for line in store.get(KEY).splitlines()]


def test_an_evaluation_joins_its_rounds_row_and_is_a_line_of_its_own(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = made(store)
    with caplog.at_level(logging.INFO, logger="metrics"):
        metrics.report(round_index=0, inner_step=2, train_loss=3.0)
        metrics.report(round_index=1, inner_step=4, train_loss=2.5)
        metrics.report(round_index=0, inner_step=2, eval_loss=2.75)
    assert rows(store) == [
        {"rank": 0, "round": 0, "inner_step": 2, "train_loss": 3.0, "eval_loss": 2.75},
        {"rank": 0, "round": 1, "inner_step": 4, "train_loss": 2.5},
    ]
    assert caplog.messages[-1] == "rank=0 round=0 inner_step=2 eval_loss=2.75"


def test_a_repeated_round_takes_the_place_of_what_an_earlier_life_said(store: ObjectStore) -> None:
    first = made(store)
    for number in range(2):
        first.report(round_index=number, inner_step=2 * number + 2, train_loss=3.0, grad_norm=1.0)
    made(store).report(round_index=1, inner_step=4, train_loss=2.0)
    assert [row["train_loss"] for row in rows(store)] == [3.0, 2.0]
    assert "grad_norm" not in rows(store)[1]


def test_a_name_of_nobodys_is_refused(store: ObjectStore) -> None:
    with pytest.raises(KeyError, match="not in layout.METRICS: \\['los'\\]"):
        made(store).report(round_index=0, inner_step=2, los=1.0)


def events(folder: Path) -> list[tuple[str, int, float]]:
    """Names, steps and values in an event file: records of length, its checksum, data, its checksum."""
    (file,) = folder.iterdir()
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack_from("<Q", data)
        event = Event.FromString(data[12 : 12 + length])
        found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    return found


def test_tensorboard_finds_a_ranks_events_where_sagemaker_uploads_them_from(
    store: ObjectStore, tmp_path: Path
) -> None:
    its = manager(store, 3, 4)
    metrics = RoundMetrics(its, 3, [tensorboard_of(tmp_path / "model", 3)])
    metrics.report(round_index=0, inner_step=20, train_loss=2.5, mean_cosine=0.5)
    metrics.report(round_index=0, inner_step=20, eval_loss=3.0)
    metrics.close()
    its._reporter.close("finished")
    assert events(tmp_path / "output/tensorboard/rank_0003") == [
        ("train_loss", 20, 2.5), ("mean_cosine", 20, 0.5), ("eval_loss", 20, 3.0),
    ]  # fmt: skip
