"""numpy's own tests of numpy.median and numpy.quantile, with the service in the place of both functions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]
TESTS = Path(np.__file__).parent / "lib" / "tests" / "test_function_base.py"


@pytest.mark.skipif(not TESTS.exists(), reason="numpy was installed without its tests")
@pytest.mark.parametrize(("name", "least"), [("TestMedian", 20), ("TestQuantile", 60)])
def test_numpys_own_tests_are_answered(models: Path, tmp_path: Path, name: str, least: int) -> None:
    counted = tmp_path / "count"
    environment = {"MEDIAN_TEST_MODELS": str(models), "MEDIAN_TEST_COUNT": str(counted), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.service.numpy_by_service", "-p", "no:cacheprovider"]
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), f"{TESTS}::{name}"]
    environment = {**os.environ, **environment}
    told = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-1000:]
    assert int(counted.read_text()) >= least
