"""JSON bodies against the standard library's parser, and bodies that try to stop a worker."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from service.errors import BadInputError, ProblemError
from service.serving import bodies, json_body
from service.serving.json_body import BodyLimits
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
        question = bodies.read_json(body, OPTIONS, LIMITS)
    except BadInputError as error:
        return error.status, error.members.get("vector"), error.members.get("index")
    return [question.vectors[i].tolist() for i in range(len(question.vectors))]


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


@pytest.mark.parametrize("small", [0, json_body.SMALL], ids=["large", "small"])
def test_as_the_standard_library_reads_it(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "SMALL", small)
    rng = np.random.default_rng(small)
    seen: dict[str, int] = {}
    for _ in range(1500):
        text = json.dumps(document(rng), indent=None if rng.random() < 0.7 else int(rng.integers(0, 3)))
        body = text.encode()
        if rng.random() < 0.5:  # damage it
            at = int(rng.integers(len(body)))
            change = [b"", b",", b"]", b"[", b'"', b"}", b"0", b"-", b" ", b"x"][int(rng.integers(10))]
            body = body[:at] + change + body[at + int(rng.integers(0, 2)) :]
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
    for content in (
        body,
        body.replace(b"1", b"1" + b" " * json_body.SMALL)[: json_body.SMALL // 2],
        body + b" " * 9000,
    ):
        if content.endswith(b"}") or content.endswith(b" "):
            answer = client.post("/median", content=content, headers={"Content-Type": JSON})
            assert answer.status_code in (400, 422)
    answer = client.post("/median", content=body, headers={"Content-Type": JSON})
    assert answer.status_code == 422
    assert "twice" in answer.json()["detail"]


@pytest.mark.parametrize("size", [40_000, 3_000_000])
def test_no_body_takes_more_than_a_small_multiple_of_its_size(size: int) -> None:
    program = [sys.executable, "-m", "tests.service.peaks", str(size)]
    ran = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [name for name, *_ in found] == list(ATTACKS)
    for name, status, peak, alive in found:
        assert status in (*ATTACKS[name].statuses, *((200, 404) if size < 100_000 else ())), name
        assert peak < 6 * size + 4_000_000, name
        assert alive, name


def test_a_large_body_is_right() -> None:
    body = good(4_000_000, 500, 400)
    question = bodies.read_json(bytearray(body), OPTIONS, BodyLimits(4096, 2048))
    assert np.array_equal(question.vectors.flat, np.ravel(json.loads(body)["vectors"]))


def test_long_vectors_of_different_lengths_with_null_and_long_integers() -> None:
    rng = np.random.default_rng(0)
    vectors: list[Any] = [rng.normal(size=n).tolist() for n in (5000, 3, 90000, 1, 9000)]
    vectors[1] = [1, 10**25, math.nan]
    vectors[2][7] = None
    body = json.dumps({"nan": "omit", "vectors": vectors}).encode()
    assert len(body) > json_body.DIAGNOSED
    question = bodies.read_json(body, OPTIONS, BodyLimits(9, 90000))
    for i, vector in enumerate(vectors):
        assert np.array_equal(question.vectors[i], np.array(vector, float), equal_nan=True)
    for limits in (BodyLimits(4, 90000), BodyLimits(5, 89999)):
        with pytest.raises(ProblemError, match="at most"):
            bodies.read_json(body, OPTIONS, limits)
    with pytest.raises(BadInputError, match="JSON") as refused:
        bodies.read_json(body + b"x", OPTIONS, BodyLimits(9, 90000))
    assert refused.value.status == 400
