"""The pictures and the table at the head of docs/frontier.md are those of the planners."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import cast

import pytest

from exporter.constructions import CONSTRUCTIONS
from exporter.constructions.scheduled import Planned
from exporter.planning.goal import Goal
from exporter.planning.mean_square import mse_bound

DOCS = Path(__file__).parents[3] / "docs"
ROW = re.compile(
    r"^\| `([\w-]+)`(?:[^|]*failure ([\d.]+))?[^|]*\| (?:yes)? ?\| (\d+) \| ([\d.]*) ?d \| ([\d.e-]+) \|", re.M
)


def test_pictures_are_those_of_the_planners() -> None:
    page = (DOCS / "frontier.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(DOCS / "pictures" / "draw_networks.py"))["pictures"]()
    assert len(made) == 7
    for name, picture in made.items():
        assert (DOCS / "pictures" / name).read_text(encoding="utf-8") == picture, "run docs/pictures/draw_networks.py"
        assert f"(pictures/{name})" in page


def test_the_table_of_networks_is_that_of_the_planners() -> None:
    rows = ROW.findall((DOCS / "frontier.md").read_text(encoding="utf-8"))
    assert len(rows) == 7
    for name, failure, depth, width, error in rows:
        rank = 2048 if name == "vote-max" else 1024
        goal = Goal(d=2048, low=rank, high=rank, failure=float(failure or 1e-3))
        build = cast(Planned, CONSTRUCTIONS[name].build)
        plan = build.schedule(goal)
        net = build.built(plan)
        assert net.depth == int(depth)
        assert net.width / 2048 == pytest.approx(float(width or 1), rel=0.005)
        assert float(error) / 1.15 < mse_bound(plan, goal) <= float(error)
