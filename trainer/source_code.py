"""`source_uri`: the user's own trainer code, put where Python imports it from.

A folder or a .tar.gz. In a training job SageMaker has copied it to the input channel `code` before
the container starts; where nobody has (plain processes, Kubernetes) it is fetched here. Every file
of it is code that this replica will run, with the rights of its role: who may write there, may run
code here.
"""

import importlib
import shutil
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Final

import fsspec

from trainer.failures import BadTrainer
from trainer.layout import CODE_CHANNEL, SOURCE_ARCHIVE
from trainer.rendezvous.errors import AccessDenied

OUR_PACKAGE: Final = "trainer"


def put_on_path(uri: str, base: Path) -> None:
    """Make the modules of the folder or .tar.gz at `uri` importable, before any of the same name.

    `base` is /opt/ml or what stands for it. Raises BadTrainer where there is no such code,
    AccessDenied where the store refuses.
    """
    channel = base / "input" / "data" / CODE_CHANNEL
    folder = channel if channel.is_dir() else _fetch(uri, _empty(base / "source" / "fetched"))
    if uri.endswith(SOURCE_ARCHIVE):
        folder = _unpack(uri, folder / uri.rsplit("/", 1)[-1], _empty(base / "source" / "unpacked"))
    if (folder / OUR_PACKAGE).is_dir() or (folder / f"{OUR_PACKAGE}.py").is_file():
        raise BadTrainer(
            f"source_uri {uri}: has a module `{OUR_PACKAGE}`, as this program has, and only one can be "
            "imported: give yours another name"
        )
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def _empty(folder: Path) -> Path:
    """`folder`, without what an earlier process may have left half done."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _fetch(uri: str, folder: Path) -> Path:
    try:
        fs, root = fsspec.core.url_to_fs(uri)
        paths = fs.find(root)
        for path in paths:
            relative = path.removeprefix(root).lstrip("/") or path.rsplit("/", 1)[-1]
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(path, str(target))
    except FileNotFoundError as error:
        raise BadTrainer(f"source_uri {uri}: there is no such folder, object or bucket ({error})") from error
    except PermissionError as error:
        raise AccessDenied(f"source_uri {uri}: reading was denied ({error})") from error
    if not paths:
        raise BadTrainer(f"source_uri {uri}: there is nothing")
    return folder


def _unpack(uri: str, archive: Path, folder: Path) -> Path:
    try:
        with tarfile.open(archive, "r:gz") as opened:
            # "data" refuses members that would land elsewhere, or be more than files (PEP 706).
            opened.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise BadTrainer(f"source_uri {uri}: can't be unpacked as a .tar.gz: {error}") from error
    return folder
