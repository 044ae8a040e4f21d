"""What tests of processes wait for, and a port for a process to listen on."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 60, what: Callable[[], Any] = lambda: "in vain") -> Any:
    """The first true value of a condition that another process, which can tell us nothing, is about to make true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, what()
        time.sleep(0.01)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
