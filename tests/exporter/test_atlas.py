from __future__ import annotations

import csv
from pathlib import Path

import pytest

from exporter import atlas as module
from exporter.cli import main


def test_atlas_is_resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["atlas", "--d", "16", "32", "--construction", "depth3", "--construction", "tree-max", "--trials", "20"]
    assert main([*args, "--out", str(tmp_path)]) == 0
    with (tmp_path / "atlas.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["construction"], r["d"]) for r in rows] == [
        ("depth3", "16"), ("depth3", "32"), ("tree-max", "16"), ("tree-max", "32")
    ]  # fmt: skip
    assert all(float(r["failure_rate"]) == 0 for r in rows)
    assert 1.9 < float(rows[0]["exponent"]) < 2.1
    assert {p.name for p in tmp_path.glob("*.png")} == {"depth-width.png", "size.png", "error.png"}

    def never(*_: object) -> None:
        raise AssertionError("a finished cell was measured again")

    monkeypatch.setattr(module, "measure", never)
    assert main([*args, "--out", str(tmp_path)]) == 0


def test_a_refusal_is_a_row(tmp_path: Path) -> None:
    assert main(["atlas", "--d", "8", "--construction", "linear22", "--out", str(tmp_path)]) == 0
    assert "too few" in (tmp_path / "atlas.md").read_text()


def test_what_is_too_large_to_run_is_counted(tmp_path: Path) -> None:
    args = ["atlas", "--d", "16384", "--construction", "depth3", "--out", str(tmp_path)]
    assert main(args) == 0
    with (tmp_path / "atlas.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["reason"].startswith("counted, not run")
    assert int(row["width"]) == 2 * 16384**2 + 16384
    assert (row["trials"], row["failure_rate"]) == ("0", "")


def test_another_effort_measures_again(tmp_path: Path) -> None:
    args = ["atlas", "--d", "16", "--construction", "depth3", "--out", str(tmp_path)]
    for trials in (20, 30):
        assert main([*args, "--trials", str(trials)]) == 0
        with (tmp_path / "atlas.csv").open() as file:
            assert [row["trials"] for row in csv.DictReader(file)] == [str(trials)]


def test_an_interrupt_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = module.measure

    def interrupted(cell: module.Cell, effort: module.Effort) -> object:
        if cell.d == 32:
            raise KeyboardInterrupt
        return real(cell, effort)

    monkeypatch.setattr(module, "measure", interrupted)
    args = ["atlas", "--d", "16", "32", "--construction", "depth3", "--out", str(tmp_path)]
    assert main(args) == 130
    assert "interrupted" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "cells").iterdir()] == ["depth3-d16.json"]


def test_exact_networks_never_fail(tmp_path: Path) -> None:
    """Also where the mean of two float32 values rounds, as numpy's does."""
    args = ["atlas", "--d", "32", "--construction", "batcher", "--construction", "radix", "--trials", "60"]
    assert main([*args, "--out", str(tmp_path)]) == 0
    with (tmp_path / "atlas.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["failure_rate"], r["mse"]) for r in rows] == [("0.0", "0.0")] * 2
