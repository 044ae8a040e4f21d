"""Every example of docs/service.md and of the README's Serving runs, on a service started as the pages say, with the
models it builds itself. (test_container.py runs the steps of the container.)"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.library import export_model
from tests.service.conftest import Server

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text().partition("\n## Serving\n")[2].partition("\n## ")[0]
PAGES = {"README": README, "service": (ROOT / "docs" / "service.md").read_text()}
BLOCKS = [
    (page, *block)
    for page, text in PAGES.items()
    for block in re.findall(r"^```(\w+)( \w+)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
START = "python -m service --models models/ --port 8000\n"
SHELL = [(page, text) for page, kind, note, text in BLOCKS if kind == "sh" and not note and text != START]
PYTHON = [(page, text) for page, kind, _, text in BLOCKS if kind == "python"]
JSON = [(page, json.loads(text)) for page, kind, _, text in BLOCKS if kind == "json"]


@pytest.fixture(scope="module")
def started(serve: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """On a folder with the filter of the page alone: the default model is built first."""
    folder = tmp_path_factory.mktemp("docs") / "models"
    export_model(out=folder, window=(3, 3), dtype="uint8")
    server = serve(folder, "--drain-s", "0").wait(120)
    assert server.log.count('"building a model"') == 1
    yield server
    server.stop()


def run(text: str, server: Server, folder: Path, *interpreter: str) -> str:
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*interpreter, text], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_the_page_has_all_kinds_of_examples(page: str) -> None:
    texts = [text for name, _, _, text in BLOCKS if name == page]
    assert START in texts
    for word in (
        "curl",
        "service.client ",
        "service.client import",
        "docker",
        *(["tritonclient"] * (page == "service")),
    ):
        assert any(word in text for text in texts), word


def test_the_container_is_started_alike_on_both_pages() -> None:
    assert len({text for _, _, note, text in BLOCKS if note == " container"}) == 1


@pytest.mark.parametrize(("page", "text"), PYTHON, ids=["-".join([page, text.split()[4]]) for page, text in PYTHON])
def test_python_examples(page: str, text: str, started: Server, tmp_path: Path) -> None:
    run(text, started, tmp_path, sys.executable, "-W", "error", "-c")


@pytest.mark.parametrize(("page", "text"), SHELL, ids=[f"{page}-{i}" for i, (page, _) in enumerate(SHELL)])
def test_shell_examples(page: str, text: str, started: Server, tmp_path: Path) -> None:
    printed = run(text, started, tmp_path, "bash", "-euc")
    for where, shown in JSON:  # what the page shows of an answer is part of the answer
        key = next(iter(shown))
        told = {"medians": "/median -H", "quantiles": '"quantiles": [0.25', "title": "null"}[key]
        if where == page and told in text and (key != "medians" or "1e300" in text):
            answer, _ = json.JSONDecoder().raw_decode(printed)
            assert shown == {key: answer[key] for key in shown}
