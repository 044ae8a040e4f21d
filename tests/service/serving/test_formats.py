"""A format is one entry: the service on both ways, its refusals, its documents and the client find it without another
edit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.client import Client
from service.client.__main__ import parse
from service.errors import BadInputError
from service.serving import formats
from service.serving.bodies import Answer, Question
from service.serving.formats import FORMATS, Format
from service.serving.gateway import Gateway
from service.serving.options import MedianOptions
from service.statistics.solve import Answers
from tests.service.connection import Connection

PAGE = Path(__file__).resolve().parents[3] / "docs" / "service.md"


def read(body: Any, options: MedianOptions, limits: Any) -> Question:
    try:
        values = np.array([[float(cell) for cell in line.split(b",")] for line in bytes(body).splitlines()])
    except ValueError:
        raise BadInputError("The lines are not numbers of one count.", vector=0) from None
    return Question.matrix(values, options)


LINES = Format(
    "lines", "text/x-lines", "a vector a line, all of one length", read,
    write=lambda answer: "\n".join(map(repr, answer.values.tolist())).encode(),
    pack=lambda vectors, options: (
        "\n".join(",".join(map(repr, np.asarray(v, float).tolist())) for v in vectors).encode(), formats.query(options)),
    unpack=lambda content, _: np.array([float(line) for line in content.splitlines()]),
    schema=lambda _: {"schema": {"type": "string"}}, answer=lambda _: {"schema": {"type": "string"}},
)  # fmt: skip


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, LINES.name, LINES)


def test_it_is_taken_and_answered(lines: None, play: Callable[..., None]) -> None:
    ask = b"POST /median?details=true HTTP/1.1\r\nContent-Type: text/x-lines\r\nContent-Length: 11\r\n\r\n1,2,9\n4,3,5"

    async def scenario(gateway: Gateway) -> None:
        connection = Connection(gateway)
        head, _, body = (await connection.ask(ask)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"content-type: text/x-lines" in head
        assert b"x-median-fallback: 0" in head
        assert body == b"2.0\n4.0"
        assert (await connection.ask(ask.replace(b"1,2,9", b"1,x,9"))).startswith(b"HTTP/1.1 422")

    play(scenario, inline_ms=1e4)


def test_documents_and_refusals_name_it(lines: None, connect: Callable[..., Any], models: Path) -> None:
    client = connect(models)
    operation = client.get("/openapi.json").json()["paths"]["/median"]["post"]
    for content in (operation["requestBody"]["content"], operation["responses"]["200"]["content"]):
        assert list(content) == [each.media_type for each in FORMATS.values()]
        assert content["text/x-lines"] == {"schema": {"type": "string"}}
    refusal = client.post("/median", content=b"", headers={"Content-Type": "text/plain"})
    assert refusal.status_code == 415
    assert "text/x-lines" in refusal.json()["detail"]
    assert refusal.json()["accepted"][-1] == "text/x-lines"
    assert "| `text/x-lines` | `lines` | a vector a line, all of one length |" in formats.table()


def test_the_client_speaks_it(lines: None, connect: Callable[..., Any], models: Path) -> None:
    service = connect(models)
    values = np.random.default_rng(0).normal(size=(4, 33))
    assert parse(["--format", "lines"]).format == "lines"
    with Client() as client:
        client.http.request = lambda _, path, **content: service.post(path, **content)  # type: ignore[method-assign]
        for name in FORMATS:
            answer = client.median(values, format=name, details=True)
            assert answer.medians.tolist() == np.median(values, axis=1).tolist()
            assert answer.models == ["median-batcher-d64"]


def test_the_page_has_exactly_these_formats() -> None:
    assert formats.table() in PAGE.read_text()


def test_the_answer_in_the_document_is_the_one_of_its_schema(connect: Callable[..., Any], models: Path) -> None:
    document = connect(models).get("/openapi.json").json()
    content = document["paths"]["/median"]["post"]["responses"]["200"]["content"]
    question = Question.matrix(np.ones((1, 1)), MedianOptions(details=True))
    assert content["application/json"]["schema"] == {"$ref": "#/components/schemas/MedianAnswer"}
    assert set(document["components"]["schemas"]["MedianAnswer"]["properties"]) == set(
        json.loads(FORMATS["json"].write(Answer(question, Answers([np.ones(1)], [np.zeros(1)]))))
    )
