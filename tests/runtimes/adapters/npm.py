"""Where npm's packages are installed, and their versions."""

from __future__ import annotations

import json
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MODULES = Path(os.environ.get("NODE_MODULES", ROOT / ".venv-runtimes" / "node_modules"))


def version(package: str) -> str:
    return str(json.loads((MODULES / package / "package.json").read_text())["version"])
