"""What the README says is true."""

import re
import subprocess
from pathlib import Path

from runs.parameter_table import BEGIN, END, table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_table_of_run_parameters_is_run_specs() -> None:
    written = README[README.index(BEGIN) : README.index(END) + len(END)]
    assert written == table(), "run `python -m runs.parameter_table`"


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page}: {target}"


def test_the_commands_it_names_are_targets_with_a_line_of_help() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"make ([a-z-]+)  ", listed))
    named = set(
        re.findall(r"make ([a-z][a-z-]+)", "\n".join(re.findall(r"`[^`]*`|```.*?```", README, re.DOTALL)))
    )
    assert named <= targets
    assert {"setup", "run", "test", "lint", "clean"} <= targets
