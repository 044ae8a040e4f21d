"""python -m tests.versions.requirements lowest|highest: what to install, from what pyproject.toml declares."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def declared() -> list[str]:
    """Everything the service is installed with, the `fast` extra included, as name>=version."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["service"], *extras["fast"]]


def requirements(which: str) -> list[str]:
    """The declared versions themselves, or any that are not lower."""
    if which == "highest":
        return declared()
    return [re.sub(r">=([\d.]+)", r"==\1", each) for each in declared()]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
