"""The frontier: every depth's best, counted on networks that are built."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.build import build
from exporter.cli.parser import main
from exporter.problem.spec import Spec
from exporter.problem.task import median
from exporter.theory.frontier import Point, frontier

UNKNOWN: dict[str, Any] = {"construction": "x", "options": {}, "max_weight": 1, "failure_bound": 0, "failure_law": None}


def point(depth: int, width: int, size: int) -> Point:
    return Point(**UNKNOWN, depth=depth, width=width, size=size)


def test_narrowest_and_smallest_of_every_depth_and_what_they_gain() -> None:
    a, b, c, e = point(3, 100, 150), point(5, 50, 170), point(5, 60, 140), point(6, 50, 140)
    assert frontier([e, c, b, a]) == [(a, a, True), (b, c, True), (e, e, False)]


@pytest.mark.parametrize("inputs", ["any", "uniform"])
def test_the_command(inputs: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("depth3", "batcher", "window4", "window5", "window6")
    asked = ["frontier", "--d", "24", "--failure", "0.3", "--inputs", inputs, "--json"]
    assert main(asked + [word for name in names for word in ("--construction", name)]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    windows = {r["construction"] for r in rows if r["construction"].startswith("window")}
    assert windows == ({"window4", "window5", "window6"} if inputs == "uniform" else set())
    for row in rows:
        if row["construction"] in ("window5", "batcher"):  # counts are those of the file
            about = build(Spec(median(24), row["construction"], inputs="grid", **row["options"])).description()
            for counted in ("depth", "width", "size", "max_weight", "failure_bound", "failure_law"):
                assert row[counted] == about[counted], counted


def test_the_star_is_explained_and_long_work_is_announced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["frontier", "--d", "24", "--construction", "depth3"]) == 0
    short = capsys.readouterr()
    assert short.out.splitlines()[1].lstrip().startswith("3*")
    assert short.out.splitlines()[-1] == "* narrower or smaller than every shallower network"
    assert "takes minutes" not in short.err
    monkeypatch.setattr("exporter.theory.frontier.points", lambda *_: [])
    assert main(["frontier", "--d", "1024"]) == 0
    assert "d = 1024 takes minutes" in capsys.readouterr().err


def test_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = tmp_path / "frontier.png"
    asked = ["frontier", "--d", "24", "--failure", "0.3", "--construction", "depth3", "--picture", str(drawn)]
    assert main(asked) == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert "depth3" in capsys.readouterr().out
    (tmp_path / "file").touch()
    assert main([*asked[:-1], str(tmp_path / "file" / "x.png")]) == 2
    assert "cannot write" in capsys.readouterr().err
    monkeypatch.setattr("exporter.theory.atlas_plots.can_plot", lambda: False)
    drawn.unlink()
    assert main(asked) == 2
    assert "pip install -e '.[plot]'" in capsys.readouterr().err
    assert not drawn.exists()


def test_light_weights_are_a_trade_for_ties() -> None:
    asked = Spec(median(64), "linear46", failure=0.1, inputs="grid")
    usual, light = (build(each).description() for each in (asked, replace(asked, objective="weights")))
    assert (light["max_weight"] or 0) * 64 <= (usual["max_weight"] or 0)
    assert (usual["ties"], light["ties"]) == ("exact", "capacity")
    assert (usual["width"], usual["failure_bound"]) == (light["width"], light["failure_bound"])
