"""Progress: lines in a log, a bar on a terminal, nothing for short work."""

from __future__ import annotations

import io
import re
import sys
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest

from exporter import progress
from exporter.cli.parser import main
from exporter.progress import Progress


def test_a_log_gets_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They name the item and the stage, and end with the work."""
    monkeypatch.setattr(progress, "EVERY", 0.01)
    before, said = threading.active_count(), ""
    for i, item in enumerate(bar := Progress("ab", "counting", "letter"), 1):
        bar.stage(f"reading {item}")
        end = monotonic() + 60
        while not re.search(rf"^counting: letter {i} of 2, reading {item}, \d+ s$", said, re.MULTILINE):
            assert monotonic() < end, said
            sleep(0.01)
            said += capsys.readouterr().err
    assert threading.active_count() == before


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(Progress(range(3), "counting", "number")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_no_line_comes_after_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.01)
    with pytest.raises(ZeroDivisionError):
        _fail()
    capsys.readouterr()
    sleep(0.05)
    assert capsys.readouterr().err == ""


def _fail() -> None:
    for _ in Progress([1], "failing", "item"):
        raise ZeroDivisionError


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    for _ in (bar := Progress(range(2), "counting", "number")):
        bar.stage("here")
    assert "counting:" in terminal.getvalue()
    assert "here" in terminal.getvalue()


def test_an_export_says_what_it_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.001)
    assert main(["--d", "500", "--construction", "radix", "--out", str(tmp_path)]) == 0
    assert "exporting: model 1 of 1, building radix, 0 s" in capsys.readouterr().err.splitlines()
