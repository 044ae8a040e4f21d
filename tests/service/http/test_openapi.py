"""The OpenAPI document against the service: schemathesis makes requests of it, good and bad, and checks the answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_schemathesis_finds_no_violation(server: Server, tmp_path: Path) -> None:
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
