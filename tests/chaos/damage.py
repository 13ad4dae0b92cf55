"""What may become of a checkpoint folder between two lives of a rank.

SageMaker copies it to S3 file by file, in no order, and may be cut short anywhere.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainer import checkpoint


def _newest(folder: Path) -> Path:
    return max(folder.glob("round_*"))


def cut(folder: Path) -> None:
    """The newest one's tensors are half there."""
    file = _newest(folder) / checkpoint.TENSORS
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flipped(folder: Path) -> None:
    """Bits of the newest one's tensors differ, of one in every hundred bytes; its header is whole."""
    file = _newest(folder) / checkpoint.TENSORS
    data = bytearray(file.read_bytes())
    for place in range(len(data) // 2, len(data), 100):
        data[place] ^= 1
    file.write_bytes(data)


def flipped_state(folder: Path) -> None:
    """A digit of the newest one's other state differs."""
    file = _newest(folder) / checkpoint.STATE
    text = file.read_text()
    changed = text.translate(str.maketrans("0123456789", "1032547698"))
    assert changed != text
    file.write_text(changed)


def no_index(folder: Path) -> None:
    """The newest one's files came first."""
    (_newest(folder) / checkpoint.INDEX).unlink()


def index_alone(folder: Path) -> None:
    """The newest one's index came first."""
    for name in (checkpoint.TENSORS, checkpoint.STATE):
        (_newest(folder) / name).unlink()


def newest_gone(folder: Path) -> None:
    """Nothing of the newest one had come."""
    shutil.rmtree(_newest(folder))


def all_cut(folder: Path) -> None:
    """No checkpoint is whole."""
    for file in folder.glob(f"round_*/{checkpoint.TENSORS}"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def all_gone(folder: Path) -> None:
    """Nothing had come."""
    shutil.rmtree(folder)


# Each raises where there is nothing to damage.
DAMAGE: Final[dict[str, Callable[[Path], None]]] = {
    "files cut": cut,
    "bits flipped in its tensors": flipped,
    "digits changed in its state": flipped_state,
    "files before the index": no_index,
    "index before the files": index_alone,
    "newest one gone": newest_gone,
}
DAMAGE_ALL: Final[dict[str, Callable[[Path], None]]] = {"all cut": all_cut, "all gone": all_gone}
