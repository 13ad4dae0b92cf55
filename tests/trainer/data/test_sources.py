"""Where data lies, and what is said where it doesn't."""

from pathlib import Path

import pytest

from runs.upload_text import upload_text
from tests.trainer.data.sets import opened, write
from trainer.data.sources import DataFile, list_source
from trainer.failures import BadDataSet


def test_files_are_known_by_their_names_wherever_they_lie(tmp_path: Path, s3_bucket: str) -> None:
    for number in range(70):
        write(tmp_path / "text" / f"part{number % 3}" / f"file{number}.txt", [f"<{number}>" * 50])
    (tmp_path / "text" / "image.png").write_bytes(b"\xff")
    (tmp_path / "text" / "__init__.py").touch()
    prefix = upload_text(tmp_path / "text", s3_bucket, "text")
    places = [str(tmp_path / "text"), (tmp_path / "text").as_uri() + "/", f"{s3_bucket}/{prefix}"]
    listed = [list_source(place, "dataset_uri") for place in places]
    names = [[(file.name, file.bytes) for file in source.files] for source in listed]
    assert names[0] == names[1] == names[2]
    assert len(names[0]) == 70
    contents = [
        {file.name: stream.read() for file, stream in source.open_each(source.files)} for source in listed
    ]
    assert contents[0] == contents[1] == contents[2]
    assert contents[0]["part1/file1.txt"] == b"<1>" * 50
    assert len({opened(place).digest() for place in places}) == 1
    one = list_source(f"{s3_bucket}/{prefix}/part1/file1.txt", "dataset_uri")
    assert [(file.name, file.bytes) for file in one.files] == [("file1.txt", 150)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.txt", ".txt"), ("a.b.jsonl.gz", ".jsonl"), ("x/a.parquet.zst", ".parquet"), ("v1.gz/a.md", ".md")],
)
def test_the_format_is_the_suffix_before_the_compression(name: str, kind: str) -> None:
    assert DataFile(name, name, 1).kind == kind


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadDataSet, match=r"dataset_uri .*/nowhere: there is no such folder or bucket"):
        opened(tmp_path / "nowhere")
    write(tmp_path / "a.jsonl", ["a"])
    with pytest.raises(BadDataSet, match=r"validation_uri .*/nowhere: there is no such folder or bucket"):
        opened(tmp_path, validation_uri=str(tmp_path / "nowhere"))


def test_a_missing_bucket_is_named(s3_bucket: str) -> None:
    with pytest.raises(BadDataSet, match=r"dataset_uri s3://no-such-bucket/text: there is no such"):
        opened("s3://no-such-bucket/text")


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(BadDataSet, match=r"dataset_uri nosuch://a/b: .*Use s3://, file:// or a path"):
        opened("nosuch://a/b")


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_a_folder_without_data_says_what_would_count(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "image.png").write_bytes(b"\xff")
    uri = str(tmp_path) if place == "folder" else request.getfixturevalue("s3_bucket") + "/none"
    with pytest.raises(
        BadDataSet,
        match=r"no data files \(.txt, .md, .rst, .py, .jsonl, .json, .parquet, plain or with .gz, ",
    ):
        opened(uri)


def test_hidden_files_are_no_data_unless_named(tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints/a-checkpoint.txt", "b/.cache/c.txt", "b/._d.txt", "b/d.txt", "_e.txt"):
        write(tmp_path / ".set" / name, ["text"])
    found = list_source(str(tmp_path / ".set"), "dataset_uri")
    assert [file.name for file in found.files] == ["_e.txt", "b/d.txt"]
    named = list_source(str(tmp_path / ".set" / "b/._d.txt"), "dataset_uri")
    assert [file.name for file in named.files] == ["._d.txt"]


def test_empty_files_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(BadDataSet, match="all its 1 data files are empty"):
        opened(tmp_path)
