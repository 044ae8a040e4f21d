"""POST /watch: the layers are the network's own, the stories are true of the numbers, and no body costs more than it may."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from exporter.constructions import CONSTRUCTIONS
from service.serving.admission import WAITING
from service.serving.watching import ALL, EACH
from service.watch.formulas import inside
from service.watch.network import OpenNetwork
from service.watch.specimens import MANIFEST, SPECIMENS, carried
from tests.service.watch.page_data import ATLAS, atlas, specimen

DRAWN: dict[str, Callable[[np.random.Generator, int], npt.NDArray[np.float64]]] = {
    "distinct": lambda rng, n: rng.permutation(n).astype(float),
    "normal": lambda rng, n: rng.normal(size=n),
    "ties": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "sorted": lambda rng, n: np.sort(rng.random(n)),
    "far": lambda rng, n: rng.normal(size=n) * 1e300,
    "farthest": lambda rng, n: np.where(rng.random(n) < 0.5, -1.7e308, 1.7e308),
}
LENGTHS = {
    "radix": (1, 2, 9, 16, 33, 64, 65), "batcher": (1, 2, 9, 16, 33, 64, 65), "depth3": (1, 2, 9, 16, 33, 64, 65),
    "depth5": (64, 65), "linear46": (256, 257), "compact": (256, 257, 2048),
}  # fmt: skip


def watch(client: Any, vector: Any, **options: Any) -> dict[str, Any]:
    response = client.post("/watch", json={"vector": np.asarray(vector).tolist(), **options})
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


def own(told: dict[str, Any]) -> npt.NDArray[Any]:
    """The caller's numbers as the network was fed them, in the order of the vector."""
    first = {entry: place for place, entry in reversed(list(enumerate(told["entries"]))) if entry >= 0}
    return np.array([told["input"][first[entry]] for entry in sorted(first)])


@pytest.mark.parametrize("construction", LENGTHS)
@pytest.mark.parametrize("family", DRAWN)
def test_the_answer_is_numpys(client: Any, construction: str, family: str) -> None:
    rng = np.random.default_rng(5)
    for n in LENGTHS[construction]:
        vector = DRAWN[family](rng, n)
        told = watch(client, vector, construction=construction)
        assert told["construction"] == construction
        if told["certified"]:
            assert abs(told["answer"] - 2 * np.median(vector / 2)) <= told["error_bound"]
        else:
            assert carried()[told["model"]].description["failure_bound"] > 0
        slope, offset = told["to_data"]["slope"], told["to_data"]["offset"]
        step = (vector.max() / 2 - vector.min() / 2) * 2.0**-15
        assert np.allclose(4 * (slope * own(told) + offset), vector, rtol=0, atol=step + 1e-12 * np.abs(vector).max())


def test_the_layers_are_those_of_the_description(client: Any) -> None:
    for specimen_ in carried().values():
        n = specimen_.d
        told = watch(client, np.arange(n), model=specimen_.name)
        modules = specimen_.description["modules"]
        assert [layer["number"] for layer in told["layers"]] == list(range(1, len(modules) + 1))
        assert [layer["name"] for layer in told["layers"]] == modules
        widths = specimen_.description["widths"]
        for layer, width in zip(told["layers"], widths, strict=True):
            assert 0 < sum(tensor["size"] for tensor in layer["tensors"]) <= width  # less what is only carried
        values = [tensor["values"] for layer in told["layers"] for tensor in layer["tensors"] if tensor["values"]]
        assert sum(map(len, values)) <= ALL
        assert max(map(len, values)) <= EACH


@pytest.mark.parametrize("name", sorted(name for name in carried() if carried()[name].d < 300))
def test_a_formula_gives_the_value_of_its_neuron(client: Any, name: str) -> None:
    """Bias and weights of the file over the values of the run are what the run has: all terms, and those over HTTP."""
    rng = np.random.default_rng(7)
    specimen_ = carried()[name]
    network = OpenNetwork(specimen_.content(), specimen_.layers)
    values = network.run((rng.integers(0, 2**16, (1, network.d)) / 2**16).astype(network.dtype))
    for layer in network.layers:
        tensor = layer.tensors[rng.integers(len(layer.tensors))]
        index = int(rng.integers(values[tensor].size))
        weights, bias = inside(network, tensor, index)
        found = bias + sum(float(row @ values[of].reshape(-1)) for of, row in weights.items())
        size = abs(bias) + sum(float(abs(row) @ abs(values[of].reshape(-1))) for of, row in weights.items())
        assert max(found, 0.0) == pytest.approx(values[tensor].reshape(-1)[index], rel=1e-6, abs=1e-6 * size)
    told = client.get(f"/watch/{name}/layers/1/neurons/0").json()
    assert [(term["layer"], term["index"]) for term in told["terms"]] == [(0, 0)]


def test_the_bracket_of_radix_holds_the_answer_and_closes(client: Any) -> None:
    for n in (9, 16, 64, 65):
        vector = np.random.default_rng(n).random(n)
        told = watch(client, vector, construction="radix")
        rank = np.sort(told["input"])[(told["d"] - 1) // 2]
        scenes = told["story"]["scenes"]
        assert told["story"]["kind"] == "bracket"
        assert [scene["name"] for scene in scenes] == [f"digit {i}" for i in range(1, 16)]
        width = 1.0
        for scene in scenes:
            width /= 2
            assert scene["upper"] - scene["lower"] == width
            assert scene["lower"] <= rank < scene["upper"]


def test_the_comparators_of_batcher_sort_what_they_touch(client: Any) -> None:
    for n in (16, 17, 64):
        told = watch(client, np.random.default_rng(n).random(n), construction="batcher")
        wires = np.array(told["input"])
        for scene in told["story"]["scenes"]:
            after = dict(map(tuple, scene["wires"]))
            for (a, b), excess in zip(scene["pairs"], scene["excess"], strict=True):
                assert a < b
                assert excess == pytest.approx(max(wires[a] - wires[b], 0.0))
                low, high = sorted((wires[a], wires[b]))
                assert after.get(a, low) == pytest.approx(low)
                assert after.get(b, high) == pytest.approx(high)
                wires[a], wires[b] = low, high
        middle = np.sort(told["input"])[[(told["d"] - 1) // 2, told["d"] // 2]]
        assert wires[[(told["d"] - 1) // 2, told["d"] // 2]] == pytest.approx(middle)


def test_the_matrix_of_depth3_ranks_every_entry_once(client: Any) -> None:
    for n in (16, 33, 65):
        told = watch(client, np.random.default_rng(n).integers(0, 6, n), construction="depth3")
        (scene,) = told["story"]["scenes"]
        x, d = np.array(told["input"]), told["d"]
        place = np.arange(d)
        wins = (x[:, None] > x[None, :]) | ((x[:, None] == x[None, :]) & (place[:, None] > place[None, :]))
        assert np.array_equal(np.array(scene["matrix"], bool), wins)
        assert sorted(scene["wins"]) == list(range(d))


@pytest.mark.parametrize("construction", ["compact", "linear46"])
def test_live_entries_lie_together_around_the_answer(client: Any, construction: str) -> None:
    n = 2048 if construction == "compact" else 256
    told = watch(client, np.random.default_rng(2).permutation(n), construction=construction)
    x, scenes = np.array(told["input"]), told["story"]["scenes"]
    assert told["story"]["kind"] == "live"
    assert len(scenes) == (1 if construction == "compact" else 4)
    middle = np.sort(x)[[n // 2 - 1, n // 2]]
    for scene in scenes:
        live = np.array(scene["entries"], bool)
        assert live.sum() == scene["live"]
        if live.any():  # all entries between the lowest and the highest live one are live
            low, high = x[live].min(), x[live].max()
            assert np.array_equal(live, (low <= x) & (x <= high))
            assert low - 2 / n <= middle[0] <= middle[1] <= high + 2 / n
    assert min(scene["live"] for scene in scenes) < n / 40


def test_depth5_shows_its_candidates(client: Any) -> None:
    told = watch(client, np.random.default_rng(2).permutation(64), construction="depth5")
    (scene,) = told["story"]["scenes"]
    assert scene["candidates"]
    assert sum(scene["entries"]) == scene["live"] == 54


def test_every_construction_of_medians_can_be_watched(client: Any) -> None:
    """But one, which has no schedule at so few entries."""
    listed = client.get("/watch").json()["models"]
    assert {each["construction"] for each in listed} == {c.name for c in CONSTRUCTIONS.values() if c.op == "median"} - {
        "window4"
    }


BAD: list[tuple[bytes, int, str]] = [
    (b"", 400, "JSON"),
    (b"[1, 2]", 422, "object"),
    (b"{}", 422, "array of numbers"),
    (b'{"vector": []}', 422, "empty"),
    (b'{"vector": [[1]]}', 422, "not a number"),
    (b'{"vector": [1, null]}', 422, "null"),
    (b'{"vector": [1, NaN]}', 422, "null"),
    (b'{"vector": [1e999]}', 422, "beyond"),
    (b'{"vector": [1], "model": 3}', 422, "name"),
    (b'{"vector": [1], "model": "../../etc/passwd"}', 404, "no network"),
    (b'{"vector": [1], "construction": "magic"}', 404, "magic"),
    (b'{"vector": [1], "layers": 3}', 422, "Unknown member"),
    (b'{"vector": [1], "vector": [2]}', 422, "twice"),
    (b'{"vector": [' + b"1," * 3000 + b'1], "construction": "batcher"}', 422, "do not fit"),
    (b'{"vector": [' + b"1," * (1 << 16) + b"1]}", 422, "too long"),
    (b'{"vector": [1], "model": "radix-64", "construction": "batcher"}', 200, ""),
    (b"{" * 100_000, 400, "JSON"),
]


@pytest.mark.parametrize(("body", "status", "said"), BAD, ids=range(len(BAD)))
def test_bad_bodies_are_explained(client: Any, body: bytes, status: int, said: str) -> None:
    response = client.post("/watch", content=body)
    assert response.status_code == status, response.text
    assert said in response.json().get("detail", "")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/watch/nothing/layers/1/neurons/0", 404),
        ("/watch/radix-16/layers/0/neurons/0", 404),
        ("/watch/radix-16/layers/999999999/neurons/0", 404),
        ("/watch/radix-16/layers/1/neurons/16", 404),
        ("/watch/radix-16/layers/-1/neurons/0", 422),
        ("/watch/radix-16/layers/1/neurons/" + "9" * 400, 422),
        ("/watch/radix-16/layers/1/neurons/x", 422),
    ],
)
def test_neurons_that_are_not_there(client: Any, path: str, status: int) -> None:
    assert client.get(path).status_code == status


def test_many_at_once_wait_or_are_told_to_come_back(client: Any) -> None:
    body = {"vector": list(range(256)), "construction": "linear46"}
    answers = client.together([lambda http: http.post("/watch", json=body)] * (2 * WAITING))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= WAITING
    assert client.post("/median", json={"vector": [3, 1, 2]}).json()["medians"] == [2.0]


def test_numpy_is_timed_beside(client: Any) -> None:
    vector = np.random.default_rng(0).normal(size=1001)
    told = client.post("/numpy", json={"vector": vector.tolist()}).json()
    assert told["median"] == np.median(vector)
    assert told["ms"] > 0
    assert client.post("/numpy", json={"vector": [1.7e308, 1.7e308]}).status_code == 422
    assert client.post("/numpy", json={"vector": [1], "model": "x"}).status_code == 422


def test_what_the_page_carries_is_what_the_exporter_makes() -> None:
    """All of the atlas, and the specimens that are quick to build. `page_data` writes them again."""
    assert ATLAS.read_bytes() == atlas()
    with zipfile.ZipFile(SPECIMENS) as archive:
        entries = {entry["file"]: entry for entry in json.loads(archive.read(MANIFEST))}
        wanted = {f"{c.name}-{d}.onnx" for c in CONSTRUCTIONS.values() if c.op == "median" for d in c.shown}
        assert set(entries) == wanted - {"window4-256.onnx", "window4-257.onnx"}, "which have no schedule"
        assert sorted(archive.namelist()) == sorted([MANIFEST, *entries])
        for name, d in (("radix", 16), ("batcher", 65), ("depth3", 17), ("depth5", 64)):
            content, entry = specimen(name, d)
            assert archive.read(f"{name}-{d}.onnx") == content
            assert entries[f"{name}-{d}.onnx"] == json.loads(json.dumps(entry))
