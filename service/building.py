"""Something to serve: the default model, and what it needs beside it, built where they are missing."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from exporter.errors import UserError
from service.compute import registry
from service.settings import Settings

log = logging.getLogger("service")
DEFAULT_D = 2048
DEFAULT_CONSTRUCTION = "radix"
DEFAULT_PROFILE = "fused"
DEFAULT_TUNE = "latency"  # the fewest operations for a lone vector; batches are nearly as fast


def ensure_models(settings: Settings) -> bool:
    """Build the default model when there is none, and a companion of odd d when some lengths could not be served.

    A model of even d answers with the mean of its two middle ranks; no padding makes that the middle of an odd number
    of values once they fill more than half of the row. One model of d + 1 closes every gap, for all conventions.
    Nothing to serve, because the default model cannot or must not be built, is a reason not to start.
    """
    log.info("loading models", extra={"fields": {"folder": str(settings.models)}})
    found = registry.load(settings.folders)
    if not settings.build:
        if not found.models:
            fields = {"folder": str(settings.models), "left_out": found.left_out}
            log.error("there is no model to serve, and --no-build forbids to build one", extra={"fields": fields})
        return bool(found.models)
    if not found.models:
        if not _build(settings, DEFAULT_D, "there is no model to serve"):
            return False
        found = registry.load(settings.folders, previous=found)
    if missing := found.gaps():
        d = found.largest + 1 - found.largest % 2
        _build(settings, d, f"{len(missing)} lengths up to {found.largest} cannot be served exactly")
    return True


def _build(settings: Settings, d: int, reason: str) -> bool:
    try:
        from exporter.library import export_model  # noqa: PLC0415, the builder is loaded only when it is needed
    except ModuleNotFoundError as error:  # the container serves and does not build
        remedy = "write models with python -m exporter where it is installed, and name their folder with --models"
        said = {"reason": reason, "error": str(error), "remedy": remedy}
        log.error("no model can be built here: this installation only serves", extra={"fields": said})
        return False
    folder = settings.folders[0] if _writable(settings.folders[0]) else settings.folders[-1]
    fields = {"construction": DEFAULT_CONSTRUCTION, "d": d, "folder": str(folder), "reason": reason}
    log.warning("building a model", extra={"fields": fields})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = export_model(d, DEFAULT_CONSTRUCTION, folder, profile=DEFAULT_PROFILE, tune=DEFAULT_TUNE)
    except (UserError, OSError) as error:
        log.error("the model cannot be built", extra={"fields": {**fields, "error": str(error)}})
        return False
    log.warning("model built", extra={"fields": {"file": str(path)}})
    return True


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
