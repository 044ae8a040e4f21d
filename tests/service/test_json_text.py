"""Short JSON documents, log lines, and times as text."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime

import pytest

from service import json_text
from service.process import logs


def test_a_request_leaves_one_line_of_json(capfd: pytest.CaptureFixture[str]) -> None:
    odd = 'é"\n\\ \udc80'
    logs.write_requests([(odd, "GET", "/" + odd, 404, 0.0123456)])
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


def test_moments() -> None:
    assert json_text.moment(0) == "1970-01-01T00:00:00.000000Z"
    assert abs(datetime.fromisoformat(json_text.moment()).timestamp() - time.time()) < 60
    assert datetime.fromisoformat(json_text.moment()).tzinfo == UTC
