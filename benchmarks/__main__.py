"""Run the benchmarks and write what they found into benchmarks/results.md and the README.

    python -m benchmarks [NAME ...]     all of them, or those named; the other lines stay as they were

Each runs as a process of its own and prints one JSON line. The page says, for each figure, what is
wanted and what was found, and on which machine and versions; the lines themselves are below it.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.goals import BENCHMARKS, GOALS, LONG

RESULTS: Final = Path(__file__).parent / "results.md"
README: Final = Path(__file__).parents[1] / "README.md"
BEGIN: Final = "<!-- figures: written by `make bench` -->"
END: Final = "<!-- end of figures -->"
PACKAGES: Final = ("torch", "torchft", "transformers", "obstore", "awscrt", "s3fs", "numpy")
FENCE: Final = "```"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*BENCHMARKS, *LONG])}")
    given = parser.parse_args()
    known = {**BENCHMARKS, **LONG}
    if unknown := set(given.names) - set(known):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    lines = read_lines(RESULTS.read_text()) if RESULTS.exists() else {}
    lines = {name: line for name, line in lines.items() if name in known}
    for name in given.names or BENCHMARKS:
        began_s = time.monotonic()
        command = [sys.executable, "-m", *known[name]]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        lines[name] = json.loads(output.splitlines()[-1]) | {"took_s": round(time.monotonic() - began_s)}
        print(json.dumps({name: lines[name]}), flush=True)
    table = goals_table(lines)
    RESULTS.write_text(page(lines, table))
    text = README.read_text()
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    README.write_text(f"{before}{BEGIN}\n\n{table}\n\n{after}")
    print(table)
    return 0


def goals_table(lines: dict[str, Any]) -> str:
    """Markdown: a row for each goal whose benchmark has run."""
    rows = ["| figure | wanted | found | |", "|---|---|---|---|"]
    for goal in GOALS:
        if goal.benchmark in lines:
            found = goal.find(lines[goal.benchmark])
            met = "" if goal.is_met(found) else "missed"
            rows.append(f"| {goal.words} | {goal.wanted} | {found:g} | {met} |")
    return "\n".join(rows)


def page(lines: dict[str, Any], table: str) -> str:
    """The whole of results.md."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    machine = f"{_processor()}, {os.cpu_count()} cores, {_memory_gb()} GB, {platform.system()}"
    shown = "\n".join(json.dumps({name: line}) for name, line in lines.items())
    return (
        "# What the benchmarks found\n\n"
        "Written by `make bench`. Both sides of a ratio run in the same process tree on the same cores; "
        "each module's docstring in this folder says what its figures mean.\n\n"
        f"- Last written: {datetime.now(UTC):%Y-%m-%d}\n- Machine: {machine}\n"
        f"- Versions: Python {platform.python_version()}, {versions}\n\n"
        f"{table}\n\n## Lines\n\n{FENCE}json\n{shown}\n{FENCE}\n"
    )


def read_lines(text: str) -> dict[str, Any]:
    """The lines of an earlier results.md."""
    block = text.partition(f"{FENCE}json\n")[2].partition(f"\n{FENCE}")[0]
    found: dict[str, Any] = {}
    for line in block.splitlines():
        found |= json.loads(line)
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gb() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)


if __name__ == "__main__":
    sys.exit(main())
