"""The files of a data set, wherever fsspec reads: listed once, opened in order, decompressed.

Local folders and file:// (a SageMaker channel is a local folder), s3:// through s3fs, which
takes credentials and AWS_ENDPOINT_URL from where boto3 takes them.
"""

import io
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import fsspec
from fsspec.compression import compr
from fsspec.utils import infer_compression

from trainer.failures import BadDataSet
from trainer.layout import COMPRESSION_SUFFIXES, DATA_SUFFIXES, DATA_SUFFIXES_IN_WORDS
from trainer.parameter_kinds import BUILT_IN_DATA
from trainer.rendezvous.errors import AccessDenied

SMALL_BYTES: Final = 2**20  # files up to this are fetched whole, several at once: a request each
TOGETHER_FILES: Final = 32  # so at most 32 MiB at once


class Damaged(Exception):
    """What is in a file can't be read in its format."""


@dataclass(frozen=True)
class DataFile:
    """`name` is relative to the data set, and so the same wherever the set lies; `bytes` as stored."""

    name: str
    path: str
    bytes: int

    @property
    def kind(self) -> str:
        """The suffix that says the format, without that of a compression: ".jsonl" of "a.jsonl.gz"."""
        name = Path(self.name)
        return Path(name.stem).suffix if name.suffix in COMPRESSION_SUFFIXES else name.suffix


@dataclass(frozen=True)
class Source:
    """The files of one URI, sorted by name. `parameter` is the run parameter that named it."""

    parameter: str
    uri: str
    fs: Any
    files: tuple[DataFile, ...]

    def where(self, name: str) -> str:
        return f"{self.parameter} {self.uri}: {name}"

    def open_each(self, files: Sequence[DataFile]) -> Iterator[tuple[DataFile, BinaryIO]]:
        """Open files in the order given; what is small is fetched ahead, many at once.

        Raises BadDataSet where a file is gone, AccessDenied where the store refuses.
        """
        for first in range(0, len(files), TOGETHER_FILES):
            group = files[first : first + TOGETHER_FILES]
            small = [file.path for file in group if file.bytes <= SMALL_BYTES]
            with self.explained(group[0].name):
                contents = self.fs.cat(small) if small else {}
            for file in group:
                with self.explained(file.name):
                    plain = file.path in contents
                    raw = io.BytesIO(contents.pop(file.path)) if plain else self.fs.open(file.path, "rb")
                    packing = infer_compression(file.name)
                    opened = raw if packing is None else compr[packing](raw, mode="rb")
                with raw, opened:
                    yield file, opened

    @contextmanager
    def explained(self, name: str) -> Iterator[None]:
        """Turn what reading raises into errors that name the file and say what to do."""
        try:
            yield
        except FileNotFoundError as error:
            raise BadDataSet(f"{self.where(name)} is gone since it was listed ({error})") from error
        except PermissionError as error:
            raise AccessDenied(f"{self.parameter} {self.uri}: reading was denied ({error})") from error
        except (Damaged, EOFError, zlib.error, lzma.LZMAError, _zstd_error()) as error:
            raise self.damaged(name, error) from error
        except OSError as error:
            # gzip and bz2 say damage by a bare OSError; one with a number is the machine's or the network's.
            if error.errno is not None:
                raise
            raise self.damaged(name, error) from error

    def damaged(self, name: str, error: Exception) -> BadDataSet:
        return BadDataSet(
            f"{self.where(name)} is cut off or damaged ({error}). Upload it again, or take it away."
        )


def list_source(uri: str, parameter: str) -> Source:
    """List the data files at `uri`: one file, or all below a folder but for hidden and empty ones.

    Raises BadDataSet naming the URI where nothing is there, AccessDenied where the store refuses.
    """
    # Built in is the trainer's own source: real text that lies wherever the trainer does.
    address = str(Path(__file__).parents[1]) if uri == BUILT_IN_DATA else uri
    try:
        fs, root = fsspec.core.url_to_fs(address)
        found: dict[str, dict[str, Any]] = fs.find(root, detail=True)
        # An S3 prefix exists only by its keys, so a missing one and an empty one look alike; a missing
        # bucket is an error already, and whether one exists a replica's role may not ask.
        if not found and "s3" not in fs.protocol and not fs.exists(root):
            raise FileNotFoundError(root)
    except FileNotFoundError as error:
        raise BadDataSet(f"{parameter} {uri}: there is no such folder or bucket ({error})") from error
    except PermissionError as error:
        raise AccessDenied(f"{parameter} {uri}: reading was denied ({error})") from error
    except (ValueError, ImportError) as error:  # a scheme that fsspec doesn't know
        raise BadDataSet(
            f"{parameter} {uri}: cannot be read: {error}. Use s3://, file:// or a path."
        ) from error
    prefix = root.rstrip("/")
    files = [
        DataFile(name or Path(path).name, path, int(info["size"]))
        for path, info in sorted(found.items())
        if path.endswith(DATA_SUFFIXES) and not _is_hidden(name := path[len(prefix) + 1 :])
    ]
    if not files:
        raise BadDataSet(f"{parameter} {uri}: no data files ({DATA_SUFFIXES_IN_WORDS}) below it")
    kept = tuple(file for file in files if file.bytes > 0)
    if not kept:
        raise BadDataSet(f"{parameter} {uri}: all its {len(files)} data files are empty")
    return Source(parameter, uri, fs, kept)


def _is_hidden(name: str) -> bool:
    """Whether a tool put it there, not a person: a notebook's copies, a cache, what macOS adds."""
    return any(part.startswith(".") for part in name.split("/"))


def _zstd_error() -> type[Exception]:
    from backports import zstd  # here, since few data sets need it

    return zstd.ZstdError
