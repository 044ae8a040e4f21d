"""The OpenAPI document against the service: schemathesis makes requests of it, good and bad, and checks the answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from exporter.library import export_model
from tests.service.conftest import Server

CHECKS = ",".join(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "response_headers_conformance",
        "negative_data_rejection",
        "unsupported_method",
    ]
)


def test_schemathesis_finds_no_violation(serve: Callable[..., Server], models: Path, tmp_path: Path) -> None:
    """On models for vectors and a filter for images."""
    folder = shutil.copytree(models, tmp_path / "models")
    export_model(out=folder, window=(3, 3), dtype="uint8")
    server = serve(folder, "--drain-s", "0", "--no-build").wait()
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", CHECKS]
    # readyz and its like answer 503 by design while shutting down; that is the only server error in the document
    options = ["--max-examples", "25", "--seed", "1", "--phases", "examples,coverage,fuzzing", "--no-color"]
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
