"""The user's own code: found wherever it may lie, never unpacked beyond its folder."""

import importlib
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.failures import BadTrainer
from trainer.rendezvous.object_store import open_store
from trainer.run_spec import InvalidRunParameters, parse
from trainer.source_code import put_on_path

MODULE = b"answer = 42"


@pytest.fixture(autouse=True)
def path() -> Iterator[list[str]]:
    """sys.path, and what was imported by it, as they were before."""
    before, modules = list(sys.path), set(sys.modules)
    yield before
    sys.path[:] = before
    for name in sys.modules.keys() - modules:
        if name.startswith("theirs"):
            del sys.modules[name]
    importlib.invalidate_caches()


def archive(**members: bytes) -> bytes:
    """A .tar.gz; `__` in a name stands for a slash, `dot` for a dot."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as opened:
        for name, content in members.items():
            entry = tarfile.TarInfo(name.replace("__", "/").replace("dot", "."))
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def answer(module: str = "theirs") -> object:
    return importlib.import_module(module).answer


def test_a_folder_in_a_store_is_fetched_and_comes_first(any_uri: str, tmp_path: Path) -> None:
    open_store(any_uri).put("code/mine/theirs/deep.py", MODULE)
    open_store(any_uri).put("code/mine-too/theirs.py", b"answer = 0")
    put_on_path(f"{any_uri}/code/mine", tmp_path / "ml")
    assert answer("theirs.deep") == 42
    assert sys.path[0] == str(tmp_path / "ml" / "source" / "fetched")


def test_an_archive_in_a_store_is_unpacked(any_uri: str, tmp_path: Path) -> None:
    open_store(any_uri).put("code/mine.tar.gz", archive(theirsdotpy=MODULE))
    put_on_path(f"{any_uri}/code/mine.tar.gz", tmp_path / "ml")
    assert answer() == 42


@pytest.fixture(params=["file", "s3"])
def any_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store keeps its objects: a folder, a bucket."""
    if request.param == "s3":
        found: str = request.getfixturevalue("s3_bucket")
        return found
    return (tmp_path / "store").as_uri()


@pytest.mark.parametrize("name", ["theirs.py", "mine.tar.gz"])
def test_what_sagemaker_has_mounted_is_not_fetched_again(tmp_path: Path, name: str) -> None:
    channel = tmp_path / "input" / "data" / "code"
    channel.mkdir(parents=True)
    (channel / name).write_bytes(MODULE if name == "theirs.py" else archive(theirsdotpy=MODULE))
    uri = "s3://not-reached/code" + ("/mine.tar.gz" if name == "mine.tar.gz" else "")
    put_on_path(uri, tmp_path)
    assert answer() == 42
    assert not (tmp_path / "source" / "fetched").exists()


def test_what_an_earlier_process_left_is_gone(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "theirs.py").write_bytes(MODULE)
    left = tmp_path / "ml" / "source" / "fetched" / "half.py"
    left.parent.mkdir(parents=True)
    left.touch()
    put_on_path((tmp_path / "code").as_uri(), tmp_path / "ml")
    assert not left.exists()


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "a/../../evil.py"])
def test_an_archive_may_not_write_beside_its_folder(tmp_path: Path, name: str, path: list[str]) -> None:
    (tmp_path / "mine.tar.gz").write_bytes(archive(**{name.replace(".py", "dotpy"): MODULE}))
    if name.startswith("/"):  # an absolute name loses its slash, and lands inside
        put_on_path((tmp_path / "mine.tar.gz").as_uri(), tmp_path / "ml")
        assert not Path(name).exists()
        return
    with pytest.raises(BadTrainer, match="can't be unpacked as a .tar.gz: .*outside the destination"):
        put_on_path((tmp_path / "mine.tar.gz").as_uri(), tmp_path / "ml")
    assert not list(tmp_path.rglob("evil.py"))
    assert sys.path == path


def test_an_archive_may_not_hold_a_link_out_of_its_folder(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "mine.tar.gz", "w:gz") as opened:
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = tarfile.SYMTYPE, "../../secret"
        opened.addfile(entry)
    with pytest.raises(BadTrainer, match="can't be unpacked"):
        put_on_path((tmp_path / "mine.tar.gz").as_uri(), tmp_path / "ml")


@pytest.mark.parametrize("content", [b"", b"no archive", archive(theirsdotpy=MODULE * 1000)[:-40]])
def test_a_damaged_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.tar.gz").write_bytes(content)
    with pytest.raises(BadTrainer, match="mine.tar.gz: can't be unpacked as a .tar.gz"):
        put_on_path((tmp_path / "mine.tar.gz").as_uri(), tmp_path / "ml")


def test_code_that_is_not_there_is_named(any_uri: str, tmp_path: Path) -> None:
    open_store(any_uri)
    with pytest.raises(BadTrainer, match="source_uri .*/absent: there is"):
        put_on_path(f"{any_uri}/absent", tmp_path)


def test_a_package_named_as_ours_is_refused(tmp_path: Path) -> None:
    """Ours is imported already: theirs would never be found, and the error would blame their module."""
    (tmp_path / "code" / "trainer").mkdir(parents=True)
    (tmp_path / "code" / "trainer" / "mine.py").touch()
    with pytest.raises(BadTrainer, match="has a module `trainer`, as this program has"):
        put_on_path((tmp_path / "code").as_uri(), tmp_path / "ml")


@pytest.mark.parametrize(
    "uri", ["", "/absolute", "s3://bucket", "http://host/x", "a b", "a\nb", "s3:/b/k", "k" * 901]
)
def test_what_no_place_takes_is_refused_before_anything_starts(uri: str) -> None:
    with pytest.raises(
        InvalidRunParameters, match="source_uri: must be a string of 1 to 900 characters as s3"
    ):
        parse({"source_uri": uri})


@pytest.mark.parametrize(
    "uri", ["builtin", "diloco-in/mine", "diloco-in/mine/", "s3://bucket/mine.tar.gz", "file:///home/me/mine"]
)
def test_every_place_that_code_may_lie_in_is_accepted(uri: str) -> None:
    assert parse({"source_uri": uri}).source_uri == uri
