"""What the tests of clusters wait for: events, for as long as a busy machine may need."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 600, what: Callable[[], str] = lambda: "in vain") -> Any:
    """What a condition says once it holds."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, what()
        time.sleep(0.1)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
