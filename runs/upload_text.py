"""Put a folder of text, JSON lines or Parquet where replicas read it: below the bucket's `diloco-in/`."""

from pathlib import Path
from typing import Final

import fsspec

from trainer.layout import DATA_SUFFIXES, DATA_SUFFIXES_IN_WORDS, INPUT_PREFIX

# Folders that are not what a person means by "the text in this folder".
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "test", "tests"})


def text_files(folder: Path) -> list[Path]:
    """The files below `folder` that a data set is made of, sorted. Raises ValueError where there are none."""
    found = sorted(path for path in folder.rglob("*") if path.name.endswith(DATA_SUFFIXES) and path.is_file())
    kept = [path for path in found if not _is_skipped(path.relative_to(folder))]
    if not kept:
        raise ValueError(f"{folder}: no data files ({DATA_SUFFIXES_IN_WORDS}) in it")
    return kept


def upload_text(folder: Path, store_uri: str, name: str) -> str:
    """Copy the data files of `folder` to the store and return their prefix, a run's `dataset_uri`."""
    files = text_files(folder)
    prefix = f"{INPUT_PREFIX}/{name}"
    fs, root = fsspec.core.url_to_fs(store_uri)
    targets = [f"{root}/{prefix}/{path.relative_to(folder).as_posix()}" for path in files]
    if "file" in fs.protocol:
        for parent in {target.rsplit("/", 1)[0] for target in targets}:
            fs.makedirs(parent, exist_ok=True)
    fs.put([str(path) for path in files], targets)
    size = sum(path.stat().st_size for path in files)
    print(f"uploaded {len(files)} files, {size / 1e6:.1f} MB, from {folder} to {store_uri}/{prefix}")
    return prefix


def _is_skipped(relative: Path) -> bool:
    return any(part in SKIPPED or part.startswith(".") for part in relative.parts)
