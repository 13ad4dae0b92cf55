"""What may become of a checkpoint folder between two lives of a rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

CHECKPOINTS: Final = "checkpoints"  # where SageMaker has it, below the base folder


def all_gone(folder: Path) -> bool:
    """Nothing had been synchronised yet."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        path.unlink()
    return bool(files)


# Each returns whether there was something to damage.
DAMAGE: Final[dict[str, Callable[[Path], bool]]] = {
    "all gone": all_gone,
}
