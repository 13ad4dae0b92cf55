"""`model_name` and `tokenizer_name`: from a name to a folder on this machine.

A name is an s3:// or file:// URI, an absolute folder (an input channel of a training job, say), or
else a hub id. What is fetched is data alone: weights as safetensors, JSON, text, tokenizer files.
Nothing that would be unpickled or run is taken, wherever it comes from.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import fsspec
import httpx2
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from trainer.failures import BadModel
from trainer.rendezvous.errors import AccessDenied

WEIGHTS_SUFFIX: Final = ".safetensors"
# Weights; configuration and tokenizer; vocabularies; SentencePiece; chat templates.
WANTED_SUFFIXES: Final = (WEIGHTS_SUFFIX, ".json", ".txt", ".model", ".jinja")
_PICKLED_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@contextmanager
def model_folder(parameter: str, name: str, scratch: Path, *, weights: bool = True) -> Iterator[Path]:
    """The local folder that `name`, the value of the run parameter `parameter`, stands for.

    A bucket's files are fetched to a new folder below `scratch`, which is gone on leaving. Without
    `weights` none of them is fetched or asked for. Raises BadModel where there is no such folder or
    where its weights can't be used, AccessDenied where the store refuses.
    """
    what = f"{parameter} {name}"
    parts = urlsplit(name)
    if name.startswith("/") or parts.scheme == "file":
        folder = Path(unquote(parts.path)) if parts.scheme else Path(name)
        _check(what, folder, weights)
        yield folder
    elif parts.scheme:
        with tempfile.TemporaryDirectory(prefix="fetched-", dir=scratch) as fetched:
            _fetch(what, name, Path(fetched), weights)
            yield Path(fetched)
    else:
        folder = _from_hub(what, name, weights)
        _check(what, folder, weights)
        yield folder


def _check(what: str, folder: Path, weights: bool) -> None:
    if not folder.is_dir():
        raise BadModel(f"{what}: there is no such folder")
    _check_names(what, [path.name for path in folder.iterdir()], weights)


def _check_names(what: str, names: list[str], weights: bool) -> None:
    """Refuse a folder of which transformers would take something else than it seems to offer."""
    if "adapter_config.json" in names:
        raise BadModel(f"{what}: is an adapter, not a model: merge it into its model and name that folder")
    if not weights or any(name.endswith(WEIGHTS_SUFFIX) for name in names):
        return
    if any(name.endswith(_PICKLED_SUFFIXES) for name in names):
        raise BadModel(
            f"{what}: its weights are pickled, and unpickling runs code: save the model as safetensors "
            "(save_pretrained does)"
        )
    raise BadModel(
        f"{what}: no {WEIGHTS_SUFFIX} file there. from_scratch trains from the configuration alone"
    )


def _fetch(what: str, uri: str, folder: Path, weights: bool) -> None:
    """Copy the files that lie directly below `uri`, several at a time."""
    try:
        fs, root = fsspec.core.url_to_fs(uri.rstrip("/"))
        names = [path.removeprefix(root).lstrip("/") for path in fs.find(root, maxdepth=1)]
        _check_names(what, names, weights)
        wanted = [
            n for n in names if n.endswith(WANTED_SUFFIXES) and (weights or not n.endswith(WEIGHTS_SUFFIX))
        ]
        if not wanted:
            raise BadModel(f"{what}: no model or tokenizer files ({', '.join(WANTED_SUFFIXES)}) below it")
        fs.get([f"{root}/{name}" for name in wanted], [str(folder / name) for name in wanted])
    except FileNotFoundError as error:
        raise BadModel(f"{what}: there is no such folder or bucket ({error})") from error
    except PermissionError as error:
        raise AccessDenied(f"{what}: reading was denied ({error})") from error
    except (ValueError, ImportError) as error:  # a scheme that fsspec doesn't know or has no library for
        raise BadModel(f"{what}: can't be read: {error}") from error


def _from_hub(what: str, name: str, weights: bool) -> Path:
    """The hub's files in its own cache (HF_HOME); a token is taken from the environment (HF_TOKEN)."""
    patterns = [f"*{suffix}" for suffix in WANTED_SUFFIXES if weights or suffix != WEIGHTS_SUFFIX]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except GatedRepoError as error:
        raise BadModel(
            f"{what}: the hub lends it to members only: accept its terms there, and give the run an HF_TOKEN"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise BadModel(
            f"{what}: the hub has no such model, or shows it to members only (HF_TOKEN). A prefix of the "
            "run's own bucket ends with a slash"
        ) from error
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise BadModel(
            f"{what}: the hub can't be reached from here. Upload the model's folder to the run's bucket and "
            f"name it with a slash at its end, such as diloco-in/models/NAME/ ({error})"
        ) from error
