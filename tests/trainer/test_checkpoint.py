"""A checkpoint is whole and ours, or it isn't loaded."""

import errno
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.toy import Settings, replica
from trainer.checkpoint import Checkpoints, Owner
from trainer.failures import CheckpointNotWritten, ForeignCheckpoint
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.state_tree import pack, unpack

OWNER = Owner(run_id="run", rank=3, parameters_sha256="ab" * 32)


def state(value: float) -> dict[str, Any]:
    return {
        "local": {"w": torch.full((3, 2), value)},
        "shared": {"f": {"w": torch.full((3, 2), -value)}},
        "inner": {
            "state": {0: {"step": torch.tensor(7.0)}},
            "param_groups": [{"betas": (0.9, 0.95), "lr": 0.1}],
        },
    }


def written(folder: Path, *rounds: int, claim: int = 0) -> Checkpoints:
    made = Checkpoints(folder, OWNER, claim)
    for round_index in rounds:
        made.write(round_index, state(round_index))
    made.finish()
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_is_read_to_the_bit_and_the_last_two_are_kept(tmp_path: Path) -> None:
    made = written(tmp_path, 1, 2, 3)
    assert names(tmp_path) == ["round_000002.c0", "round_000003.c0"]
    found = made.newest()
    assert found is not None
    assert (found.round, found.claim) == (3, 0)
    assert torch.equal(found.state["local"]["w"], torch.full((3, 2), 3.0))
    assert torch.equal(found.state["shared"]["f"]["w"], torch.full((3, 2), -3.0))
    inner = found.state["inner"]
    assert inner["state"][0]["step"] == 7.0
    assert inner["param_groups"] == [{"betas": (0.9, 0.95), "lr": 0.1}]


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere", OWNER, 0).newest() is None


def test_of_one_round_the_later_process_counts(tmp_path: Path) -> None:
    written(tmp_path, 2, claim=1)
    written(tmp_path, 2, claim=10)
    found = written(tmp_path, claim=11).newest()
    assert found is not None
    assert (found.round, found.claim) == (2, 10)


def test_the_state_is_that_of_the_call(tmp_path: Path) -> None:
    """The training thread goes on and changes its tensors while they are written."""
    made, tree = Checkpoints(tmp_path, OWNER, 0), state(1.0)
    made.write(1, tree)
    tree["local"]["w"].fill_(99.0)
    made.finish()
    found = made.newest()
    assert found is not None
    assert torch.equal(found.state["local"]["w"], torch.full((3, 2), 1.0))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["index.json", "state.json", "tensors.safetensors"])
@pytest.mark.parametrize("harm", [flip, cut, Path.unlink], ids=["flipped", "cut", "missing"])
def test_a_damaged_one_gives_way_to_the_one_before_and_is_logged(
    tmp_path: Path, name: str, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    made = written(tmp_path, 4, 5)
    harm(tmp_path / "round_000005.c0" / name)
    with caplog.at_level(logging.WARNING):
        found = made.newest()
    assert found is not None
    assert found.round == 4
    assert f"event=checkpoint_damaged run=run rank=3 round=5 folder={tmp_path}/round_000005.c0" in caplog.text
    assert name in caplog.text


def test_every_bit_of_an_index_counts(tmp_path: Path) -> None:
    """A flipped digit of the round or a letter of the run is damage, not another's checkpoint."""
    made = written(tmp_path, 5)
    path = tmp_path / "round_000005.c0" / "index.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        found = made.newest()
        assert found is None, f"byte {position}"


def test_files_of_sagemakers_own_and_unfinished_folders_are_passed_over(tmp_path: Path) -> None:
    made = written(tmp_path, 5)
    (tmp_path / "round_000009.c0.sagemaker-uploading").write_text("")
    (tmp_path / "unfinished.round_000008.c0").mkdir()
    (tmp_path / "round_000005.c0" / "state.json.sagemaker-uploaded").write_text("")
    found = made.newest()
    assert found is not None
    assert found.round == 5
    written(tmp_path, 6, claim=1)
    assert "unfinished.round_000008.c0" not in names(tmp_path)


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        (replace(OWNER, run_id="other"), "its run_id is 'run' where 'other' belongs"),
        (replace(OWNER, rank=4), "its rank is 3 where 4 belongs"),
        (replace(OWNER, parameters_sha256="cd" * 32), "its parameters_sha256 is 'abab"),
    ],
    ids=["run", "rank", "parameters"],
)
def test_anothers_is_refused(tmp_path: Path, owner: Owner, text: str) -> None:
    written(tmp_path, 5)
    with pytest.raises(ForeignCheckpoint, match=text):
        Checkpoints(tmp_path, owner, 1).newest()


def test_a_checkpoint_that_can_not_be_written_is_an_error_of_the_next_round(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    made = Checkpoints(tmp_path / "file", OWNER, 0)
    made.write(1, state(1.0))
    with pytest.raises(CheckpointNotWritten, match=r"rank 3: no checkpoint in .*/file: .*Is the disk full"):
        made.write(2, state(2.0))


def test_what_did_not_fit_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but whole checkpoints stays, so that the disk has room again."""
    made = written(tmp_path, 1)

    def full(tree: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("trainer.checkpoint.json.dumps", full)
    made.write(2, state(2.0))
    with pytest.raises(CheckpointNotWritten, match="No space left on device"):
        made.finish()
    assert names(tmp_path) == ["round_000001.c0"]


def test_no_round_is_contributed_to_before_its_checkpoint_is_on_the_disk(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Else a process killed then would be two rounds behind."""
    s = Settings()
    r = replica(store, 0, 1, s, checkpoints=tmp_path)
    r.train(4, s)
    (tmp_path / "rank_0000").rename(tmp_path / "away")
    (tmp_path / "rank_0000").write_text("no folder")
    with pytest.raises(CheckpointNotWritten):
        r.train(12, s)
    assert r.loop.rounds == 2
    assert not store.keys("diloco-rdv/run/log/round_000002")


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("local", r"the model: missing \['layers.0.bias'\], extra \['other'\]"),
        ("shared", r"shared weights of StreamingDiLoCoFragment_0: missing \['layers.0.bias'\]"),
        ("stateful", r"stateful: missing \[\], extra \['other'\]"),
        ("random", r"the parts of a checkpoint: missing \['random'\]"),
        ("inner", r"inner optimizer: its parameter groups are \[\[0\]\]"),
    ],
)
def test_missing_and_extra_names_are_refused(
    store: ObjectStore, tmp_path: Path, part: str, text: str
) -> None:
    s = Settings()
    first = replica(store, 0, 1, s, checkpoints=tmp_path)
    first.train(4, s)
    assert first.loop._checkpoints is not None
    tree = first.loop._state.capture()
    if part == "random":
        del tree["random"]
    elif part == "stateful":
        tree["stateful"]["other"] = {}
    elif part == "inner":
        tree["inner"]["param_groups"][0]["params"] = [0]
    else:
        found = tree["local"] if part == "local" else tree["shared"]["StreamingDiLoCoFragment_0"]
        found["other"] = found.pop("layers.0.bias")
    first.loop._checkpoints.write(1, tree)
    first.loop._checkpoints.finish()
    with pytest.raises(ForeignCheckpoint, match=text):
        replica(store, 0, 1, s, checkpoints=tmp_path)


def test_a_checkpoint_beyond_the_log_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    s = Settings()
    replica(store, 0, 1, s, checkpoints=tmp_path).train(8, s)
    with pytest.raises(ForeignCheckpoint, match="of round 2, which the run's log hasn't come to"):
        replica(open_store("memory://"), 0, 1, s, checkpoints=tmp_path)


def test_a_state_tree_comes_back_with_its_types() -> None:
    tree = {1: (1, 2.5, float("inf"), None), "a": [True, {"b": "c"}], "big": 2**70, "third": 1 / 3}
    tensors: dict[str, torch.Tensor] = {}
    assert unpack(json.loads(json.dumps(pack(tree, "x", tensors))), tensors) == tree


def test_a_state_that_needs_pickling_is_refused_by_its_path() -> None:
    with pytest.raises(TypeError, match="stateful/mine/when: a object can't be kept in a checkpoint"):
        pack({"mine": {"when": object()}}, "stateful", {})
