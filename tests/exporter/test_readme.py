"""The examples of the README and of docs/planner.md run as they are written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/planner.md"]


def blocks(page: str, language: str) -> list[str]:
    """The examples of a page that need no service; tests/service/test_docs.py runs the others."""
    text = (ROOT / page).read_text().partition("\n## Serving\n")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_examples(tmp_path: Path, page: str) -> None:
    (commands,) = blocks(page, "sh")
    for line in commands.splitlines():
        command = shlex.split(line)
        if command[0] == "pip":
            continue  # `make setup` has done it
        assert command[0] == "python"
        subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True, env=_environment())
    for program in blocks(page, "python"):
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, env=_environment())


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("page", PAGES)
def test_files_that_it_names_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target


def test_refusals_read_as_they_are_printed(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```\n(\$ python.*?)```", (ROOT / "docs/planner.md").read_text(), re.DOTALL)
    for part in shown.split("$ python ")[1:]:
        command, said = part.split("\n", 1)
        call = [sys.executable, *shlex.split(command)]
        done = subprocess.run(call, cwd=tmp_path, check=False, env=_environment(), capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.split() == said.split()
