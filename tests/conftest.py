"""Two tiers of tests: the fast ones of `make test`, and the slow ones that `make slow` adds.

A slow test carries the marker `slow` or lies in tests/slow. `pytest` alone runs the fast tier, `pytest -m slow` the slow
tier, `pytest -m ""` both.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

SLOW = Path(__file__).parent / "slow"


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the programs that tests start would ignore it
    config.addinivalue_line("markers", "slow: takes long, and is run by `make slow` instead of `make test`")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW in item.path.parents:
            item.add_marker("slow")
