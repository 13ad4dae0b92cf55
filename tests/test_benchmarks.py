"""The page of results says what its lines say, and the README what the page says."""

import math
from pathlib import Path

import pytest

from benchmarks.__main__ import BEGIN, END, goals_table, page, read_lines
from benchmarks.goals import BENCHMARKS, GOALS, LONG, Goal

ROOT = Path(__file__).parents[1]
RESULTS = (ROOT / "benchmarks" / "results.md").read_text()


def test_a_goal_is_met_or_missed() -> None:
    goal = Goal("exchange", "ours.ratio", ">=", 7, "words")
    assert goal.find({"ours": {"ratio": 6.5}}) == 6.5
    assert [goal.is_met(found) for found in (6.99, 7.0, math.nan)] == [False, True, False]
    assert goals_table({}) == "| figure | wanted | found | |\n|---|---|---|---|"


def test_every_goal_is_of_a_benchmark_that_exists() -> None:
    assert {goal.benchmark for goal in GOALS} <= {*BENCHMARKS, *LONG}
    for module, *_ in (*BENCHMARKS.values(), *LONG.values()):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


def test_the_lines_of_a_page_can_be_read_back() -> None:
    lines = {"wire": {"x": 1.5}, "overlap": {"hidden": 1.0, "text": "a```b"}}
    assert read_lines(page(lines, "table")) == lines


@pytest.mark.parametrize("name", sorted({goal.benchmark for goal in GOALS} & set(BENCHMARKS)))
def test_each_benchmark_with_a_goal_has_been_run(name: str) -> None:
    assert name in read_lines(RESULTS)


def test_the_page_and_the_readme_say_what_the_lines_say() -> None:
    table = goals_table(read_lines(RESULTS))
    readme = (ROOT / "README.md").read_text()
    assert table in RESULTS
    assert readme[readme.index(BEGIN) + len(BEGIN) : readme.index(END)].strip() == table
