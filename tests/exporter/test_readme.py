"""The README's first steps run as they are written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_first_steps(tmp_path: Path) -> None:
    (commands,) = blocks("sh")
    for line in commands.splitlines():
        command = shlex.split(line)
        if command[0] == "pip":
            continue  # `make setup` has done it
        assert command[0] == "python"
        subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True, env=_environment())
    (program,) = blocks("python")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_files_that_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
