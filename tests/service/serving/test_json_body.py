"""JSON bodies in pieces of any size, against the standard library's parser, and bodies that try to stop a worker."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from service.errors import BadInputError, ProblemError
from service.serving import bodies, json_body
from service.serving.json_body import BodyLimits, in_one_go
from service.serving.options import MedianOptions
from tests.service.attacks import ATTACKS, JSON, good

LIMITS = BodyLimits(40, 30)
OPTIONS = MedianOptions()


def reference(body: bytes) -> Any:
    """What should come of a body: the vectors, or the status and the place of what is wrong. By the standard library."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise LookupError
        return dict(pairs)

    try:
        document = json.loads(body, object_pairs_hook=unique)
    except ValueError:
        return 400
    except LookupError:
        return 422
    if (
        not isinstance(document, dict)
        or set(document) - OPTIONS.members
        or ("vector" in document) + ("vectors" in document) != 1
    ):
        return 422
    if document.get("even", "mean") not in ("mean", "lower") or not isinstance(document.get("exact", True), bool):
        return 422
    if not isinstance(document.get("model"), str | None):
        return 422
    vectors = document["vectors"] if "vectors" in document else [document["vector"]]
    if not isinstance(vectors, list) or not 0 < len(vectors) <= LIMITS.vectors:
        return 422
    for vector in vectors:
        if not isinstance(vector, list) or not 0 < len(vector) <= LIMITS.length:
            return 422
        for index, value in enumerate(vector):
            if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
                return 422, vectors.index(vector), index
    return [[float(value) for value in vector] for vector in vectors]


def _finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def read(body: bytes) -> Any:
    try:
        request = in_one_go(bodies.read_json(body, OPTIONS, LIMITS))
    except BadInputError as error:
        return error.status, error.members.get("vector"), error.members.get("index")
    vectors: list[Any] = [None] * request.count
    for group in request.groups:
        for position, values in zip(group.positions, group.values.tolist(), strict=True):
            vectors[position] = values
    return vectors


SCALARS: tuple[Any, ...] = (0, -1, 2.5, 1e-5, 1.25e300, -0.0, 10**25, 2**64, -(2**63) - 1, 2**63, 0.1)
ODD: tuple[Any, ...] = (None, True, "a", "]", ",", [], [1], {}, {"a": [1]}, math.nan, math.inf, 10**400)


def document(rng: np.random.Generator) -> Any:
    """Vectors as they should be, or nearly."""

    def pick(values: tuple[Any, ...]) -> Any:
        return values[int(rng.integers(len(values)))]

    bad = rng.random() < 0.4
    vectors = [[pick(SCALARS) for _ in range(int(rng.integers(1, 12)))] for _ in range(int(rng.integers(1, 9)))]
    if bad:
        vector = vectors[int(rng.integers(len(vectors)))]
        vector[int(rng.integers(len(vector)))] = pick(ODD)
    if rng.random() < 0.1:
        vectors[int(rng.integers(len(vectors)))] = pick((*ODD, 1))
    found: dict[str, Any] = {"vectors": vectors} if rng.random() < 0.7 else {"vector": vectors[0]}
    for name, values in (("even", ("mean", "lower")), ("exact", (True, False)), ("model", ("[x]", None, 'a"]'))):
        if rng.random() < 0.3:
            found = {name: pick(values), **found} if rng.random() < 0.5 else {**found, name: pick(values)}
    return found


@pytest.mark.parametrize("piece", [64, 200, json_body.PIECE])
@pytest.mark.parametrize("whole", [0, bodies.WHOLE], ids=["in pieces", "whole"])
def test_as_the_standard_library_reads_it(piece: int, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "PIECE", piece)
    monkeypatch.setattr(bodies, "WHOLE", whole)
    rng = np.random.default_rng(piece)
    seen: dict[str, int] = {}
    for _ in range(1500):
        text = json.dumps(document(rng), indent=None if rng.random() < 0.7 else int(rng.integers(0, 3)))
        body = text.encode()
        if rng.random() < 0.5:  # damage it
            at = int(rng.integers(len(body)))
            change = [b"", b",", b"]", b"[", b'"', b"}", b"0", b"-", b" ", b"x"][int(rng.integers(10))]
            body = body[:at] + change + body[at + int(rng.integers(0, 2)) :]
        if any(len(part) > piece - 4 for part in body.replace(b"]", b",").split(b",")):
            continue  # numbers longer than a piece are refused
        expected, got = reference(body), read(body)
        if isinstance(expected, list):
            assert got == expected, body
            assert str(got) == str(expected), body  # the sign of 0 too
            seen["good"] = seen.get("good", 0) + 1
        else:
            assert isinstance(got, tuple), body
            if isinstance(expected, tuple):  # another mistake may come first
                assert got[0] == 422, body
                assert got[1:] == expected[1:] or got[2] is None or got[1] < expected[1], body
            seen["bad"] = seen.get("bad", 0) + 1
    assert min(seen["good"], seen["bad"]) > 100


@pytest.mark.parametrize(
    "body",
    [
        b'{"vector": [1], "vector": [2]}',
        b'{"vectors": [[1]], "vectors": [[2]]}',
        b'{"vector": [1], "exact": true, "exact": false}',
        b'{"exact": true, "vector": [1], "\\u0065xact": true}',
    ],
)
def test_a_member_that_is_there_twice_is_refused(client: Any, body: bytes) -> None:
    for content in (body, body.replace(b"1", b"1" + b" " * bodies.WHOLE)[: bodies.WHOLE // 2], body + b" " * 9000):
        if content.endswith(b"}") or content.endswith(b" "):
            answer = client.post("/median", content=content, headers={"Content-Type": JSON})
            assert answer.status_code in (400, 422)
    answer = client.post("/median", content=body, headers={"Content-Type": JSON})
    assert answer.status_code == 422
    assert "twice" in answer.json()["detail"]


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("size", [40_000, 3_000_000])
def test_no_body_takes_more_than_a_small_multiple_of_its_size(client: Any, name: str, size: int) -> None:
    attack = ATTACKS[name]
    body = attack.make(size)
    path = attack.path.format(model="median-batcher-d64")
    client.post(path, content=attack.make(1000), headers={"Content-Type": attack.kind})  # imports are not counted
    tracemalloc.start()
    try:
        answer = client.post(path, content=body, headers={"Content-Type": attack.kind})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status_code in (*attack.statuses, *((200, 404) if size < 100_000 else ()))
    assert peak < 6 * size + 4_000_000
    assert client.get("/healthz").status_code == 200


def test_a_large_body_is_read_in_many_steps_and_right() -> None:
    body = good(4_000_000, 500, 400)
    limits = BodyLimits(4096, 2048)
    reading = bodies.read_json(bytearray(body), OPTIONS, limits)
    steps = 0
    while True:
        try:
            next(reading)
            steps += 1
        except StopIteration as end:
            request = end.value
            break
    assert steps > len(body) / json_body.PIECE
    (group,) = request.groups
    assert np.array_equal(group.values, json.loads(body)["vectors"])


def test_vectors_longer_than_a_piece_of_different_lengths() -> None:
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=n).tolist() for n in (5000, 3, 9000, 1, 9000)]
    request = in_one_go(bodies.read_json(json.dumps({"vectors": vectors}).encode(), OPTIONS, BodyLimits(9, 9000)))
    got = {p: row for group in request.groups for p, row in zip(group.positions, group.values.tolist(), strict=True)}
    assert [got[i] for i in range(5)] == vectors
    for limits in (BodyLimits(4, 9000), BodyLimits(5, 8999)):
        with pytest.raises(ProblemError, match="at most"):
            in_one_go(bodies.read_json(json.dumps({"vectors": vectors}).encode(), OPTIONS, limits))
