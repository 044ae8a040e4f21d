"""POST /filter: every pixel is scipy's and OpenCV's, whatever the tiles; and nothing that is sent there does harm."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from scipy import ndimage

from exporter.formats.model_file import decode
from exporter.library import export_model
from service.app import create_app
from service.models import filters
from service.process.settings import Settings
from service.serving.admission import WAITING
from tests.service import toy_models
from tests.service.conftest import InProcess

Array = npt.NDArray[Any]
NPY, RAW = {"Content-Type": "application/x-npy"}, {"Content-Type": "application/octet-stream"}
WRITTEN: list[dict[str, Any]] = [
    {"window": (3, 3), "dtype": "uint8"},
    {"window": (5, 5), "dtype": "uint8"},
    {"window": (4, 2), "border": "reflect", "even": "lower"},
    {"window": (3, 3)},
    {"window": (7, 3), "border": "zero", "rank": (2,)},
    {"window": (3, 5), "border": "valid"},
    {"window": (3, 3), "profile": "structured"},
    {"window": (3, 3), "profile": "fused", "dtype": "float32"},
    {"frames": 5, "dtype": "uint8"},
    {"frames": 4},
]
NAMES = [
    "median-window3x3-uint8", "median-window5x5-uint8", "median-lower-window4x2-reflect", "median-window3x3",
    "rank2-window7x3-zero", "median-window3x5-valid", "median-window3x3-structured", "median-window3x3-float32-fused",
    "median-frames5-uint8", "median-frames4",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filters")
    export_model(d=9, construction="batcher", out=folder)
    for options in WRITTEN:
        export_model(out=folder, **options)
    export_model(out=folder, window=(3, 3), dtype="float16")
    export_model(out=folder, window=(3, 3), batch=2)
    return folder


@pytest.fixture(scope="module")
def app(folder: Path) -> Iterator[InProcess]:
    client = InProcess(create_app(Settings(models=folder, log_level="error", build=False, max_body_mib=1)))
    yield client
    client.close()


def npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def ask(app: InProcess, array: Array, model: str | None = None, **more: Any) -> httpx.Response:
    params = {} if model is None else {"model": model}
    return app.post("/filter", content=npy(array), headers=NPY, params=params, **more)


def answer(app: InProcess, array: Array, model: str | None = None) -> Array:
    response = ask(app, array, model)
    assert response.status_code == 200, response.text
    found: Array = np.load(io.BytesIO(response.content))
    assert response.headers["X-Median-Shape"] == ",".join(map(str, found.shape))
    assert response.headers["X-Median-Dtype"] == found.dtype.name
    return found


def picture(*shape: int, dtype: str = "uint8", seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def by_scipy(array: Array, **how: Any) -> Array:
    """Channel by channel."""
    channels = array[..., None] if array.ndim == 2 else array
    done = [ndimage.rank_filter(channels[..., c], **how) for c in range(channels.shape[-1])]
    return np.stack(done, -1).reshape(array.shape)


SHAPES = [(1, 1), (1, 7), (7, 1), (2, 3, 3), (40, 61), (33, 50, 3), (70, 90, 4), (20, 30, 9)]


@pytest.fixture(params=[1, 1 << 26], ids=["tiles", "whole"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tiles, and one for all."""
    monkeypatch.setattr(filters, "ROOM", request.param)
    if request.param == 1:
        monkeypatch.setattr(filters, "SHORTEST", 7)


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_pixel_is_that_of_scipy_and_opencv(app: InProcess, shape: tuple[int, ...]) -> None:
    x = picture(*shape)
    for k, name in ((3, NAMES[0]), (5, NAMES[1])):
        found = answer(app, x, name)
        assert found.dtype == np.uint8
        assert np.array_equal(found, by_scipy(x, rank=k * k // 2, size=(k, k), mode="nearest"))
        if x.ndim == 2 or x.shape[-1] in (1, 3, 4):
            assert np.array_equal(found, cv2.medianBlur(x, k))
    f = (x * np.float32(0.37)).astype(np.float32)
    assert np.array_equal(answer(app, f, NAMES[2]), by_scipy(f, rank=3, size=(4, 2), mode="reflect"))
    assert np.array_equal(answer(app, f, NAMES[3]), by_scipy(f, rank=4, size=(3, 3), mode="nearest"))
    assert np.array_equal(answer(app, -f, NAMES[4]), by_scipy(-f, rank=1, size=(7, 3), mode="constant"))
    structured = answer(app, x, NAMES[6])
    assert structured.dtype == np.float32
    assert np.array_equal(structured, by_scipy(x, rank=4, size=(3, 3), mode="nearest"))
    if shape[0] >= 3 and shape[1] >= 5:
        inner = by_scipy(f, rank=7, size=(3, 5), mode="nearest")[1:-1, 2:-2]
        assert np.array_equal(answer(app, f, NAMES[5]), inner)
    if shape[2:] == (3,):
        assert np.array_equal(answer(app, x, NAMES[7]), by_scipy(x, rank=4, size=(3, 3), mode="nearest"))


@pytest.mark.usefixtures("room")
@pytest.mark.parametrize("shape", [(1, 1), (20, 31), (20, 31, 3)], ids=str)
def test_frames(app: InProcess, shape: tuple[int, ...]) -> None:
    five, four = picture(5, *shape), picture(4, *shape, dtype="float32")
    assert np.array_equal(answer(app, five, NAMES[8]), np.median(five, axis=0).astype(np.uint8))
    assert np.array_equal(answer(app, four, NAMES[9]), np.median(four, axis=0))


def test_raw_pixels_and_the_choice_of_a_filter(app: InProcess) -> None:
    x = picture(12, 9, 3)
    response = app.post("/filter?shape=12,9,3", content=x.tobytes(), headers=RAW)
    assert response.headers["Content-Type"] == RAW["Content-Type"]
    assert response.headers["X-Median-Models"] == NAMES[0], "the smallest median window of this type"
    assert response.headers["X-Median-Error-Bound"] == "0.0"
    assert response.content == cv2.medianBlur(x, 3).tobytes()
    f = x.astype("<f4")
    response = app.post("/filter?shape=12,9,3&dtype=float32", content=f.tobytes(), headers=RAW)
    assert response.headers["X-Median-Models"] == NAMES[2]
    response = app.post(f"/filter?shape=12,9,3&dtype=float32&model={NAMES[3]}", content=f.tobytes(), headers=RAW)
    assert response.content == cv2.medianBlur(x, 3).astype("<f4").tobytes()
    assert "median_pixels_total" in app.get("/metrics").text


def test_what_is_loaded_and_what_was_left_out(app: InProcess, folder: Path) -> None:
    told = app.get("/models").json()
    assert {each["name"] for each in told["filters"]} == set(NAMES)
    assert [each["name"] for each in told["models"]] == ["median-batcher-d9"]
    assert "grid only" in told["left_out"]["median-window3x3-float16.onnx"] or "float16" in str(told["left_out"])
    assert "batches of 2" in told["left_out"]["median-window3x3-batch2.onnx"]
    assert app.get(f"/models/{NAMES[0]}").json()["description"]["window"] == [3, 3]
    assert app.get(f"/models/{NAMES[0]}/file").content == (folder / f"{NAMES[0]}.onnx").read_bytes()
    before = dict(app.engine.registry.filters)
    assert app.post("/models/reload").status_code == 200
    assert app.engine.registry.filters == before, "what did not change stays open"
    assert app.post("/median", json={"vector": [1, 2, 3], "model": NAMES[0]}).status_code == 404
    assert app.get(f"/v2/models/{NAMES[0]}").status_code == 404


BAD: list[tuple[Array | bytes, str, dict[str, str], int, str]] = [
    (picture(4, 4), "?model=nothing", NPY, 404, "no filter 'nothing'"),
    (picture(4, 4), "?model=median-batcher-d9", NPY, 404, "no filter"),
    (picture(4, 4), "?size=3", NPY, 422, "Unknown query parameter"),
    (picture(4, 4), "?model=a&model=b", NPY, 422, "twice"),
    (picture(4, 4), "", {"Content-Type": "image/png"}, 415, "must be application/x-npy"),
    (picture(4), "", NPY, 422, "two to four axes"),
    (picture(2, 2, 2, 2, 2), "", NPY, 422, "two to four axes"),
    (picture(4, 4, 3, 3), "", NPY, 422, "[h, w] or [h, w, c]"),
    (picture(0, 4), "", NPY, 422, "0 bytes"),
    (picture(4, 4, dtype="int64"), "", NPY, 422, "send uint8"),
    (picture(4, 4, dtype=">f4"), "", NPY, 422, "send uint8"),
    (np.asfortranarray(picture(4, 4)), "", NPY, 422, "Fortran"),
    (picture(4, 4, dtype="float64"), "", NPY, 404, "no filter for windows of float64"),
    (picture(4, 4, dtype="float32"), f"?model={NAMES[0]}", NPY, 422, "pixels of uint8, not of float32"),
    (picture(3, 4, 4), f"?model={NAMES[8]}", NPY, 422, "5 frames, not 3"),
    (picture(4, 4), f"?model={NAMES[8]}", NPY, 422, "[frames, h, w]"),
    (picture(2, 9), f"?model={NAMES[5]}", NPY, 422, "at least (3, 5)"),
    (np.array([[1, np.nan]], "f4"), "", NPY, 422, "row 0, column 1 is not a finite number"),
    (np.array([[1], [np.inf]], "f4"), f"?model={NAMES[3]}", NPY, 422, "row 1, column 0 is not a finite"),
    (np.array([[1], [256]], "f4"), f"?model={NAMES[6]}", NPY, 422, "row 1, column 0 is not in [0, 255]"),
    (picture(600, 600), f"?model={NAMES[3]}", NPY, 413, "answer is larger"),
    (picture(1100, 1100), "", NPY, 413, "body is larger"),
    (b"", "", NPY, 400, "not a .npy file"),
    (npy(picture(4, 4))[:-1], "", NPY, 422, "the body has 15"),
    (b"1234", "", RAW, 422, "needs ?shape"),
    (b"1234", "?shape=2,2,2", RAW, 422, "8 bytes"),
    (b"1234", "?shape=2", RAW, 422, "two to four"),
    (b"1234", "?shape=-2,-2", RAW, 422, "two to four"),
    (b"", "?shape=0,0", RAW, 422, "0 bytes"),
    (b"1234", "?shape=2,2&dtype=int8", RAW, 422, "dtype must be one of"),
    (b"1234", "?shape=999999999,999999999,999999999,999999999", RAW, 422, "bytes"),
]


@pytest.mark.parametrize(("body", "query", "headers", "status", "said"), BAD, ids=[each[4] for each in BAD])
def test_what_is_refused(
    app: InProcess, body: Array | bytes, query: str, headers: dict[str, str], status: int, said: str
) -> None:
    content = body if isinstance(body, bytes) else npy(body)
    response = app.post(f"/filter{query}", content=content, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    assert said in response.json()["detail"]
    assert app.engine.memory.used == 0


def test_without_filters_and_without_the_key(connect: Callable[..., InProcess], models: Path, folder: Path) -> None:
    assert ask(connect(models), picture(4, 4)).json()["detail"].startswith("There is no filter")
    locked = connect(folder, api_key="secret")
    assert ask(locked, picture(4, 4)).status_code == 401


def test_a_large_picture_holds_nobody_up_and_is_given_up_in_time(
    connect: Callable[..., InProcess], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Medians are answered between two tiles, more than a few pictures are refused, and none is worked on for ever."""
    monkeypatch.setattr(filters, "ROOM", 1)
    client = connect(folder, timeout_s=0.5)
    large = npy(picture(1500, 1500, 3))

    async def send(http: httpx.AsyncClient) -> Any:
        return (await http.post("/filter", content=large, headers=NPY)).status_code

    async def median(http: httpx.AsyncClient) -> Any:
        return (await http.post("/median", json={"vector": [3, 1, 2]})).status_code

    statuses = client.together([send] * (WAITING + 3) + [median] * 20)
    assert statuses[-20:] == [200] * 20
    assert 504 in statuses
    assert set(statuses[:-20]) <= {200, 429, 504}  # a fast machine is done with some in time
    assert statuses.count(429) == 3
    assert client.engine.memory.used == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"outputs": [{"name": "y", "ranks": [4], "weights": [1.0]}]}, "ranks = [5]"),
        ({"window": [3, 4]}, "it says 9 numbers of uint8, and the graph takes 12"),
        ({"window": [0, 3]}, "window = [0, 3]"),
        ({"frames": 9}, "frames = 9"),
        ({"border": "none"}, "border = 'none'"),
        ({"operations": -1}, "operations = -1"),
        ({"dtype": "int8"}, "of int8, and the graph takes 9 of uint8"),
        ({"inputs": "grid"}, "right on its grid only"),
        ({"batch": 2}, "batches of 2"),
    ],
)
def test_a_description_that_is_not_right_costs_that_filter(
    connect: Callable[..., InProcess], tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    export_model(d=9, construction="batcher", out=tmp_path)
    path = export_model(out=tmp_path, window=(3, 3), dtype="uint8")
    toy_models.describe(path, decode(onnx.load(path)) | change)
    told = connect(tmp_path).get("/models").json()
    assert told["filters"] == []
    assert reason in told["left_out"]["median-window3x3-uint8.onnx"]


def test_a_file_that_computes_something_else_is_left_out(connect: Callable[..., InProcess], tmp_path: Path) -> None:
    """Manifest and metadata agree, and the pixels do not: the trial finds out."""
    import hashlib

    export_model(d=9, construction="batcher", out=tmp_path)
    path = export_model(out=tmp_path, window=(3, 3), dtype="uint8")
    other = onnx.load(export_model(out=tmp_path / "other", window=(3, 3), dtype="uint8", rank=(4,)))
    proto = onnx.load(path)
    proto.graph.CopyFrom(other.graph)
    path.write_bytes(proto.SerializeToString())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["models"][-1]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    told = connect(tmp_path).get("/models").json()
    assert "not what numpy makes of its window" in told["left_out"]["median-window3x3-uint8.onnx"]
