from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from exporter.cli.parser import main
from exporter.errors import install
from exporter.theory import atlas as module
from exporter.theory import atlas_page


def test_atlas_is_table_page_and_pictures(tmp_path: Path) -> None:
    args = ["atlas", "--d", "16", "32", "--construction", "depth3", "--construction", "tree-max", "--trials", "20"]
    assert main([*args, "--out", str(tmp_path)]) == 0
    with (tmp_path / "atlas.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["construction"], r["d"]) for r in rows] == [
        ("depth3", "16"), ("depth3", "32"), ("tree-max", "16"), ("tree-max", "32")
    ]  # fmt: skip
    assert all(float(r["failure_rate"]) == 0 for r in rows)
    assert 1.9 < float(rows[0]["exponent"]) < 2.1
    assert (tmp_path / "atlas.md").exists()
    drawn = {p.name: p.read_bytes() for p in tmp_path.glob("*.png")}
    assert set(drawn) == {"depth-width.png", "size.png", "error.png"}
    for name in drawn:
        (tmp_path / name).unlink()
    assert main(["atlas", "--plots-only", "--out", str(tmp_path)]) == 0
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.png")} == drawn, "drawn again from the table"


def test_a_refusal_is_a_row(tmp_path: Path) -> None:
    assert main(["atlas", "--d", "8", "--construction", "linear46", "--out", str(tmp_path)]) == 0
    assert "too few" in (tmp_path / "atlas.md").read_text()


@pytest.mark.slow
def test_what_is_too_large_to_run_is_counted(tmp_path: Path) -> None:
    args = ["atlas", "--d", "16384", "--construction", "depth3", "--out", str(tmp_path)]
    assert main(args) == 0
    with (tmp_path / "atlas.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["reason"].startswith("counted, not run")
    assert int(row["width"]) == 2 * 16384**2 + 16384
    assert (row["trials"], row["failure_rate"]) == ("0", "")


def test_an_interrupt_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = module.measure

    def interrupted(name: str, d: int, *args: Any) -> object:
        if d == 32:
            raise KeyboardInterrupt
        return real(name, d, *args)

    monkeypatch.setattr(module, "measure", interrupted)
    args = ["atlas", "--d", "16", "32", "--construction", "depth3", "--out", str(tmp_path)]
    assert main(args) == 130
    assert "interrupted" in capsys.readouterr().err
    kept = (tmp_path / "atlas.csv").read_text()
    assert [line.split(",")[:3] for line in kept.splitlines()[1:]] == [["depth3", "median", "16"]]


def test_rows_that_are_not_asked_for_stay(tmp_path: Path) -> None:
    for d in ("16", "9"):
        assert main(["atlas", "--d", d, "--construction", "depth3", "--trials", "5", "--out", str(tmp_path)]) == 0
    with (tmp_path / "atlas.csv").open("a") as file:  # a construction that there is no longer
        file.write((tmp_path / "atlas.csv").read_text().splitlines()[1].replace("depth3", "depth1") + "\n")
    assert main(["atlas", "--d", "8", "--construction", "depth3", "--trials", "5", "--out", str(tmp_path)]) == 0
    rows = module.read_table(tmp_path / "atlas.csv")
    assert [(row["construction"], row["d"]) for row in rows] == [("depth3", 8), ("depth3", 9), ("depth3", 16)]


def test_exact_networks_never_fail(tmp_path: Path) -> None:
    """Also where the mean of two float32 values rounds, as numpy's does."""
    args = ["atlas", "--d", "32", "--construction", "batcher", "--construction", "radix", "--trials", "60"]
    assert main([*args, "--out", str(tmp_path)]) == 0
    with (tmp_path / "atlas.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["failure_rate"], r["mse"]) for r in rows] == [("0.0", "0.0")] * 2


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "construction,op,d\nradix,median,many\n", "\x00"])
def test_a_table_that_is_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "atlas.csv").write_text(text)
    for asked in (["--plots-only"], ["--d", "8", "--construction", "depth3"]):
        assert main(["atlas", *asked, "--out", str(tmp_path)]) == 2
        assert "is not a table of the atlas" in capsys.readouterr().err
        assert (tmp_path / "atlas.csv").read_text() == text


def test_without_matplotlib_it_says_that_there_are_no_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["atlas", "--d", "9", "--construction", "batcher", "--trials", "5", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert f"matplotlib is not installed: {install('plot')}" in said
    assert f"--plots-only --out {tmp_path}" in said
    assert not list(tmp_path.glob("*.png"))
    assert main(["atlas", "--plots-only", "--out", str(tmp_path)]) == 2
    assert "matplotlib is not installed" in capsys.readouterr().err


def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures of a small atlas of medians and maxima, as matplotlib is asked to save them."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    names = [word for name in ("depth3", "depth5", "linear-max", "tree-max") for word in ("--construction", name)]
    args = ["atlas", "--d", "16", "64", *names, "--trials", "5", "--seconds", "1", "--out", str(tmp_path)]
    assert main(args) == 0
    return figures


def test_pictures_speak_to_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No labels of the paper's source, and medians and maxima apart."""
    from matplotlib.text import Text

    figures = drawn(tmp_path, monkeypatch)
    assert len(figures) == 3
    for figure in figures:
        words = [text.get_text() for text in figure.findobj(Text)]
        assert not [w for w in words if "theorem:" in w or "cor:" in w or "_" in w]
        for axes in figure.axes:
            inside = " ".join(text.get_text() for text in axes.findobj(Text))
            if axes.get_title().startswith("medians"):
                assert "depth3" in inside
                assert "max" not in inside
            if axes.get_title().startswith("maxima"):
                assert "tree-max" in inside
                assert "depth" not in inside.replace("depth against width", "").replace("depth", "", 1)


def test_the_page_in_docs_is_that_of_its_table() -> None:
    folder = Path(module.__file__).parents[2] / "docs" / "atlas"
    assert (folder / "atlas.md").read_text() == atlas_page.page(module.read_table(folder / "atlas.csv"))
