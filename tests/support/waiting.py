"""The one way in which tests wait for what another process does."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

DEADLINE_S: Final = 120.0  # for a loaded machine; what is waited for takes seconds on an idle one


def wait_until(
    look: Callable[[], T | None], what: str, *, within_s: float = DEADLINE_S, every_s: float = 0.05
) -> T:
    """Poll until `look` returns something true; an AssertionError that names `what` after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(every_s)
    return found
