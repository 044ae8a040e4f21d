"""Writes the pages that are made from the code: `python docs/reference.py` (part of `make docs`).

docs/index.md                README.md
docs/reference/cli.md        the help of every command
docs/reference/api.md        the functions of the library with their docstrings
docs/reference/*.md          copies of pages that lie elsewhere in the repository
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import exporter
from exporter.cli.parser import VERBS

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "reference"
SERVICE = ("service", "service.client", "service.tables")


def help_of(*command: str) -> str:
    run = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    return f"```text\n{run.stdout.rstrip()}\n```\n"


def command_line() -> str:
    parts = ["# Command line\n", "## python -m exporter\n", help_of("exporter", "--help-all")]
    for verb in VERBS:
        if verb not in ("export", "filter"):  # their options are the ones above
            parts += [f"## python -m exporter {verb}\n", help_of("exporter", verb, "--help")]
    for program in SERVICE:
        parts += [f"## python -m {program}\n", help_of(program, "--help")]
    return "\n".join(parts)


def fenced(docstring: str) -> str:
    """A docstring with its examples as blocks of code."""
    return re.sub(
        r"(?m)^ *>>> .*\n(?:.+\n?)*", lambda found: f"```python\n{found[0].rstrip()}\n```\n", docstring + "\n"
    )


def library() -> str:
    parts = ["# Library\n", "`import onnx_median` (or `exporter`, which is the same).\n"]
    for name in exporter.__all__:
        item = getattr(exporter, name)
        if callable(item):
            parts.append(f"## {name}\n")
            if inspect.isfunction(item):
                signature = f"{name}{inspect.signature(item)}".replace("exporter.net.", "")
                parts.append(f"```python\n{signature}\n```\n")
            parts.append(f"{fenced(inspect.getdoc(item) or '')}\n")
            if inspect.isclass(item):
                parts += [
                    f"- `{key}`: {(inspect.getdoc(value) or '').partition(chr(10))[0]}"
                    for key, value in vars(item).items()
                    if not key.startswith("_") and inspect.getdoc(value)
                ]
                parts.append("")
    return "\n".join(parts)


def copied(path: Path) -> str:
    """A page from elsewhere: links into docs/ stay links, all others become their text."""
    text = path.read_text()
    here = path.parent

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        file = (here / target.partition("#")[0]).resolve()
        inside = file.is_relative_to(ROOT / "docs") and file.exists()
        return f"[{words}](/{file.relative_to(ROOT / 'docs')})" if inside else words

    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!http)([^)]+)\)", link, text)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    (ROOT / "docs" / "index.md").write_text(copied(ROOT / "README.md").replace("](docs/", "]("))
    (OUT / "cli.md").write_text(command_line())
    (OUT / "api.md").write_text(library())
    for name in ("CHANGELOG.md", "models/RUNTIMES.md"):
        (OUT / Path(name).name).write_text(copied(ROOT / name))


if __name__ == "__main__":
    main()
