"""Every example of docs/service.md runs, on a service started as the page says, with the models it builds itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.service.conftest import Server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "service.md").read_text()
BLOCKS = re.findall(r"^```(\w+)( \w+)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
START = "python -m service --models models/ --port 8000\n"
SHELL = [text for kind, note, text in BLOCKS if kind == "sh" and not note and text != START]
PYTHON = [text for kind, _, text in BLOCKS if kind == "python"]
JSON = [json.loads(text) for kind, _, text in BLOCKS if kind == "json"]


@pytest.fixture(scope="module")
def started(serve: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """On an empty folder: the default model is built first."""
    server = serve(tmp_path_factory.mktemp("docs") / "models", "--drain-s", "0").wait(120)
    assert server.log.count('"building a model"') == 2
    yield server
    server.stop()


def run(text: str, server: Server, folder: Path, *interpreter: str) -> str:
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*interpreter, text], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_all_kinds_of_examples() -> None:
    assert START in [text for _, _, text in BLOCKS]
    assert len(SHELL) >= 5
    assert len(PYTHON) == 2
    assert any("tritonclient" in text for text in PYTHON)
    assert any(note.strip() == "container" for _, note, _ in BLOCKS)


@pytest.mark.parametrize("text", PYTHON, ids=["client", "tritonclient"])
def test_python_examples(text: str, started: Server, tmp_path: Path) -> None:
    run(text, started, tmp_path, sys.executable, "-W", "error", "-c")


@pytest.mark.parametrize("text", SHELL, ids=range(len(SHELL)))
def test_shell_examples(text: str, started: Server, tmp_path: Path) -> None:
    printed = run(text, started, tmp_path, "bash", "-euc")
    for shown in JSON:  # what the page shows of an answer is part of the answer
        if ("medians" in shown and '"exact": true' in text) or ("title" in shown and "null" in text):
            answer = json.loads(printed)
            assert shown == {key: answer[key] for key in shown}
