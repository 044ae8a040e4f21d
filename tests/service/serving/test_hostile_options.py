"""Options that are made to take long: every parser of a caller's text needs time in proportion to its length."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest

from service.errors import ProblemError
from service.serving import bodies, exchange, filter_route, formats, options, protocol_v2, tables
from service.serving.json_body import BodyLimits
from tests.service.conftest import InProcess

SIZE = 32_000
LIMITS = BodyLimits(4096, 1 << 20)
# each of them stopped a parser somewhere, or would stop a careless one
WORST = {
    "digits": "1" * SIZE + "x",
    "fraction": "0." + "1" * SIZE + "x",
    "exponents": "1e1" * (SIZE // 3),
    "zeros": "0" * SIZE + "x",
    "spaces": "1,1" + " " * SIZE + "x",
    "spaces and commas": " ," * (SIZE // 2) + "x",
    "commas": "," * SIZE,
    "quotes": "'" * SIZE,
    "double quotes": '"a' * (SIZE // 2),
    "names": ",".join(map(str, range(SIZE // 6))),
    "brackets": "(" * SIZE,
    "members": "'a':[" * (SIZE // 5),
    "semicolons": "a;q=1" * (SIZE // 5),
    "percent": "%" * SIZE,
    "pairs": "a=1&" * (SIZE // 4),
}


def _query(name: str, path: str = "/quantile") -> Callable[[str], Any]:
    return lambda text: options.read_query.__wrapped__(f"{name}={quote(text)}".encode(), path)


def _npy(text: str) -> Any:
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {text[:4000]}, }}".encode()
    return bodies.read_npy(
        b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head, options.MedianOptions(), LIMITS
    )


def _v2(text: str) -> Any:
    tensor = {"name": "x", "datatype": "FP64", "shape": [1, 1]}
    document = {"inputs": [tensor], "parameters": {"quantiles": text}}
    return protocol_v2._options(protocol_v2._checked(document, None, LIMITS), None)


PARSERS: dict[str, Callable[[str], Any]] = {
    **{name: _query(name) for name in ("quantiles", "ranks", "method", "d", "dtype", "columns", "by", "header", "nan")},
    "even": _query("even", "/median"),
    "query": lambda text: options.read_query.__wrapped__(text.encode(), "/median"),
    "v2 parameters": _v2,
    "shape of a picture": filter_route._sides,
    "shape of an array": _npy,
    "Content-Type": lambda text: formats.format_of(text.encode()),
    "Accept": lambda text: formats.answer_format(text.encode(), formats.FORMATS["json"]),
    "X-Request-ID": lambda text: exchange.REQUEST_ID.match(text.encode()),
    "first line of a CSV file": lambda text: tables._are_numbers(tables._first_line(text.encode(), SIZE)),
    "columns of a table": lambda text: tables._wanted(
        text.split(","), options.MedianOptions(columns=tuple(text.split(",")))
    ),
}


def _seconds(work: Callable[[], Any]) -> float:
    """The least of three runs."""
    least = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        with suppress(ProblemError):
            work()
        least = min(least, time.perf_counter() - started)
    return least


@pytest.mark.parametrize("parser", PARSERS)
def test_no_option_takes_more_than_linear_time(parser: str) -> None:
    """A pass over the characters in Python is the measure; what is quadratic takes thousands of times as long."""
    for name, text in WORST.items():
        linear = _seconds(lambda text=text: sum(character == "x" for character in text))  # type: ignore[misc]
        taken = _seconds(lambda text=text: PARSERS[parser](text))  # type: ignore[misc]
        assert taken < 200 * linear, f"{parser}: {name} takes {taken / linear:.0f} times a pass over the text"


@pytest.mark.parametrize("d", ["0" * 4300, "0" * 4300 + "3", "1" * 16, "", " 3", "3 "])
def test_a_length_that_is_none(client: InProcess, d: str) -> None:
    raw = {"Content-Type": "application/octet-stream"}
    answer = client.post("/median", params={"d": d, "dtype": "float32"}, content=bytes(12), headers=raw)
    assert (answer.status_code, answer.json()["status"]) == (422, 422)


@pytest.mark.parametrize("text", ["1_0", "1" * 65, "0x1", "1e", "e1", ".", "+", "١", "1e99999", "nan"])
def test_a_quantile_that_is_no_number(client: InProcess, text: str) -> None:
    answer = client.post("/quantile", params={"quantiles": text}, json={"vector": [1.0]})
    assert answer.status_code == 422
    assert "quantiles" in answer.json()["detail"]


def test_numbers_as_they_may_be_written(client: InProcess) -> None:
    asked = {"quantiles": "0, 1,.5,1.,5e-1,+0.5,0.25e0"}
    answer = client.post("/quantile", params=asked, json={"vector": [1.0, 2.0, 3.0]})
    assert answer.json()["quantiles"] == [[1.0, 3.0, 2.0, 3.0, 2.0, 2.0, 1.5]]
