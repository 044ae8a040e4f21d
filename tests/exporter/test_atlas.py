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
