"""A line a replica while a run goes on, from the replicas' progress objects.

Shared by everything that follows runs. A leaf, like trainer/report.py.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ReplicaView:
    """What there is to say of one replica. `status` is its job's or process's, in SageMaker's words."""

    rank: int
    status: str
    progress: dict[str, Any] | None

    def cells(self, rounds: int) -> list[str]:
        """State, round, inner step, loss, tokens/s."""
        progress = self.progress or {}
        loss, speed = progress.get("loss"), progress.get("tokens_per_s")
        state = progress.get("state", "importing") if self.status == "InProgress" else self.status
        return [
            state,
            f"{progress.get('round', 0)}/{rounds}",
            str(progress.get("inner_step", 0)),
            "-" if loss is None else f"{loss:.4f}",
            "-" if speed is None else f"{speed:.0f}",
        ]


class ProgressLines:
    """Plain lines for a terminal that can't be redrawn, each said once; or a table for one that can."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._said: dict[int, tuple[str, str, str]] = {}

    def changed(self, views: list[ReplicaView]) -> list[str]:
        """Lines of those replicas that have something new to say: another state, or a finished round."""
        lines = []
        for view in views:
            state, round_shown, step, loss, speed = view.cells(self._rounds)
            if self._said.get(view.rank) != (state, loss, speed):
                self._said[view.rank] = (state, loss, speed)
                where = f"{state}, round {round_shown}, inner step {step}"
                lines.append(f"rank {view.rank}: {where}, loss {loss}, {speed} tokens/s")
        return lines

    def table(self, views: list[ReplicaView]) -> "Table":
        from rich.table import Table

        table = Table("rank", "state", "round", "inner step", "loss", "tokens/s", box=None)
        for view in views:
            table.add_row(str(view.rank), *view.cells(self._rounds))
        return table
