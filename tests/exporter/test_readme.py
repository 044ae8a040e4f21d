"""The examples of the README and of docs/planner.md run as they are written, and every figure of the README is so."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import yaml

from exporter.build import Built, build
from exporter.constructions import CONSTRUCTIONS
from exporter.formats.model_file import OPSET
from exporter.problem.grid import Grid
from exporter.problem.spec import OptimizeFor, Spec
from exporter.problem.task import median
from tests.runtimes.adapters import RUNTIMES
from tests.tiers import telling

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/planner.md",
    "docs/images.md",
    "docs/quantisation.md",
    "docs/rewrite.md",
    "docs/verification.md",
]
D = 2048
TABLE = ("radix", "depth3", "batcher", "depth5", "linear46", "linear18", "compact")
# digits that are names and measure nothing
NAMES = (
    r"float32|int8|8-bit|16-bit|Theorem 3\.[12]|main theorem \(3\.3\)|Section 4"
    r"|Protocol v2|begin below 0|relu\(v - 1\)|exp\(-d\^Ω\(1\)\)"
)


def blocks(page: str, language: str) -> list[str]:
    """The examples of a page that need no service; tests/service/test_docs.py runs the others."""
    text = (ROOT / page).read_text().partition("\n## Serving\n")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", telling(PAGES, ["README.md"]))
def test_examples(tmp_path: Path, page: str) -> None:
    for line in "".join(blocks(page, "sh")).splitlines():
        command = shlex.split(line)
        if command[0] == "pip":
            continue  # `make setup` has done it
        assert command[0] == "python"
        subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True, env=_environment())
    for program in blocks(page, "python"):
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, env=_environment())


def commands() -> list[str]:
    """The commands of the table of the first screen that need no model, data or service of the reader's."""
    table = (ROOT / "README.md").read_text().partition("| you are |")[2].partition("\n\n")[0]
    found = re.findall(r"`python (-m exporter [^`]+)`", table)
    return [command for command in found if "MODEL" not in command and "FILE" not in command]


@pytest.mark.parametrize("command", telling(commands(), lambda command: "atlas" not in command))
def test_commands_of_the_first_screen(tmp_path: Path, command: str) -> None:
    subprocess.run([sys.executable, *shlex.split(command)], cwd=tmp_path, check=True, env=_environment())
    assert list(tmp_path.rglob("*.onnx" if "atlas" not in command else "*.md"))


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("page", PAGES)
def test_files_that_it_names_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_paper_is_named_as_it_is_cited() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited), "what the format asks for"
    paper, text = cited["preferred-citation"], " ".join((ROOT / "README.md").read_text().split())
    assert f"*{paper['title']}*" in text
    names = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    assert f"{', '.join(names[:-1])} and {names[-1]}" in text


def test_refusals_read_as_they_are_printed(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```\n(\$ python.*?)```", (ROOT / "docs/planner.md").read_text(), re.DOTALL)
    for part in shown.split("$ python ")[1:]:
        command, said = part.split("\n", 1)
        call = [sys.executable, *shlex.split(command)]
        done = subprocess.run(call, cwd=tmp_path, check=False, env=_environment(), capture_output=True, text=True)
        assert done.returncode == 2
        printed = [line for line in done.stderr.splitlines() if not line.startswith("exporting: ")]  # on a slow machine
        assert " ".join(printed).split() == said.split()


def bare(construction: str, optimize_for: OptimizeFor = "throughput") -> Built:
    """What --inputs grid writes, as the table has it."""
    return build(Spec(median(D), construction, profile="structured", optimize_for=optimize_for, inputs="grid"))


def row(construction: str) -> str:
    """The beginning of a construction's row: widths and sizes rounded, failures rounded up."""
    model = bare(construction)
    counted, failure = model.accounting, model.failure
    width, size = (f"{n / D:.1f}" if n < 20 * D else f"{n / D:.0f}" for n in (counted.width, counted.size))
    right = "every grid input"
    if failure.bound:
        unit = 10.0 ** math.floor(math.log10(100 * failure.bound))
        right = f"all but {round(math.ceil(100 * failure.bound / unit) * unit, 12):g} %"
        right += ", on average over seeds" * (failure.law == "seeds")
    return f"| `{construction}` | {counted.depth} | {width} d | {size} d | {right}"


@cache
def figures() -> list[str]:
    """Every figure of the README, in its words, computed."""
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    depth3, depth5, linear = (CONSTRUCTIONS[name].claims for name in ("depth3", "depth5", "linear46"))
    assert (depth3.exponent, depth5.exponent, linear.exponent) == (2, 5 / 3, 1)
    depths = [bare("radix", optimize_for).accounting.depth for optimize_for in get_args(OptimizeFor)]
    bits, half = Grid().bits, np.float32(0.5)
    assert np.spacing(half) == Grid().step > np.spacing(np.nextafter(half, np.float32(0)))
    assert len(RUNTIMES) == 15
    return [
        f"With Python {python} or newer",
        f"depth {depth3.depth} and width O(d²), depth {depth5.depth} and width O(d^(5/3)), "
        f"and constant depth {linear.depth} and width O(d)",
        f"(d = {D}, {bits} bits, the mean of the two middle values",
        *map(row, TABLE),
        f"depth {min(depths)} to {max(depths)}, see `--optimize-for`",
        f"({bits} by default: every float32 in [{half}, 1]",
        f"opset {OPSET}",
        "measured in fifteen runtimes",
    ]


def prose() -> str:
    """The README on one line, without its examples, which run."""
    text = (ROOT / "README.md").read_text()
    return " ".join(re.sub(r"^```.*?^```$|^    [^\n]*$", "", text, flags=re.MULTILINE | re.DOTALL).split())


def complaints(text: str) -> list[str]:
    """Figures that a text states otherwise, and numbers in it that nobody computed."""
    wrong = [figure for figure in figures() if text.count(figure) != 1]
    for figure in figures():
        text = text.replace(figure, "")
    return wrong + re.findall(r"\S*\d\S*", re.sub(rf"`[^`]*`|\]\([^)]*\)|{NAMES}", "", text))


def test_every_figure_is_what_is_built() -> None:
    assert complaints(prose()) == []


def test_any_other_figure_would_be_noticed() -> None:
    text = prose()
    for number in re.finditer(rf"`[^`]*`|\]\([^)]*\)|{NAMES}|(\d+)", text):
        if number[1]:
            assert complaints(text[: number.start()] + str(int(number[1]) + 1) + text[number.end() :])
