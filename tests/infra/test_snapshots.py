"""The stacks' resources as they were last looked at: a change shows here before it shows in an account.

A line a resource: logical id, type, and the names of its properties, with hashes masked. After a change
that is meant: UPDATE_SNAPSHOTS=1 python -m pytest tests/infra/test_snapshots.py, and read the difference.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("stack", ["storage", "runs", "monitoring"])
def test_resources_are_those_of_the_snapshot(stack: str, templates: dict[str, dict[str, Any]]) -> None:
    lines = [
        f"{_masked(name)} {resource['Type']}: {', '.join(sorted(resource.get('Properties', {})))}"
        for name, resource in sorted(templates[stack]["Resources"].items())
    ]
    text = "\n".join(lines) + "\n"
    path = FOLDER / f"{stack}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def _masked(logical_id: str) -> str:
    """CDK ends an id in eight digits, a hash of its path."""
    return re.sub(r"[0-9A-F]{8}$", "HASH", logical_id)
