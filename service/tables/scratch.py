"""Folders for rows that do not fit in memory. They are removed when closed, or when a signal ends the process."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def _prefix() -> str:
    return f"onnx-median-{os.getpid()}-"


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=_prefix())


def remove_scratch() -> None:
    """Remove all scratch folders of this process."""
    for folder in Path(tempfile.gettempdir()).glob(_prefix() + "*"):
        shutil.rmtree(folder, ignore_errors=True)
