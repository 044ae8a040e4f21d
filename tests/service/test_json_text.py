"""JSON when memory is short: an error is raised, and the process goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from service import json_text, logs

# grants a little more at a time, from nothing to plenty, and tells how often it was enough
SCARCE = """
import resource, sys
from service import json_text
numbers = [i / 7 for i in range(100000)]
write = {"long": lambda: json_text.long(numbers, json_text.NUMBER * len(numbers)), "short": lambda: json_text.short(numbers)}
write, outcomes = write[sys.argv[1]], [0, 0]
write()
for room in range(0, 64 << 20, 1 << 20):
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, resource.RLIM_INFINITY))
    try:
        write()
        outcomes[0] += 1
    except MemoryError:
        outcomes[1] += 1
print(*outcomes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of address space are Linux's")
@pytest.mark.parametrize("which", ["long", "short"])
def test_a_lack_of_memory_is_an_error(which: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", SCARCE, which], capture_output=True, check=False, env={**os.environ, "PYTHONPATH": "."}
    )
    assert told.returncode == 0, told.stderr
    enough, lacking = map(int, told.stdout.split())
    assert enough > 0
    assert lacking > 0


LOST = """
import resource
from service import logs
logs.configure("info")
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (4 << 20), resource.RLIM_INFINITY))
logs.write_requests(logs.RequestLine("id", "GET", path, 200, 0.001) for path in ("x" * 3000000, "short"))
logs.flush()
print(logs.lost())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of address space are Linux's")
def test_a_line_that_finds_no_room_is_lost_and_counted() -> None:
    """The lines after it are written."""
    told = subprocess.run(
        [sys.executable, "-c", LOST], capture_output=True, check=False, env={**os.environ, "PYTHONPATH": "."}
    )
    assert (told.returncode, told.stdout) == (0, b"1\n"), told.stderr
    assert b'"path":"short"' in told.stderr


def test_a_request_leaves_one_line_of_json(capfd: pytest.CaptureFixture[str]) -> None:
    odd = 'é"\n\\ \udc80'
    logs.write_requests([logs.RequestLine(odd, "GET", "/" + odd, 404, 0.0123456)])
    logs.flush()
    line = json.loads(capfd.readouterr().err)
    assert {**line, "time": None} == {
        "time": None,
        "level": "info",
        "logger": "service",
        "message": "request",
        "request_id": odd,
        "method": "GET",
        "path": "/" + odd,
        "status": 404,
        "ms": 12.346,
    }


def test_what_is_written_can_be_read() -> None:
    document = {"text": 'é"\udc80\n', "numbers": [1, -0.5, 1e300], "none": None}
    assert json.loads(json_text.short(document)) == document
    assert json.loads(json_text.short({"path": os})) == {"path": str(os)}
    assert json.loads(json_text.long(document["numbers"], 9)) == document["numbers"]


def test_moments() -> None:
    assert json_text.moment(0) == "1970-01-01T00:00:00.000000Z"
    assert abs(datetime.fromisoformat(json_text.moment()).timestamp() - time.time()) < 60
    assert datetime.fromisoformat(json_text.moment()).tzinfo == UTC
