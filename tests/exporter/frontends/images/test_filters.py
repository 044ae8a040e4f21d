"""Files for windows and frames in onnxruntime: equal to scipy and OpenCV in every pixel, borders included."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from scipy import ndimage

from exporter.cli.parser import main
from exporter.errors import UserError
from exporter.formats.session import open_session
from exporter.frontends.images.running import windows
from exporter.library import export_model
from exporter.net import load
from exporter.passes.profiles import IMAGE_PROFILES, prove_profile
from exporter.problem.families import FLOATS
from exporter.tools.describe import describe, describe_lines
from exporter.tools.verify import verify

MODES = {"edge": "nearest", "reflect": "reflect", "zero": "constant"}
SIZES = [(1, 1), (1, 7), (7, 1), (2, 3), (5, 30), (24, 17)]
Array = Any


def run(path: Path, x: Array) -> Array:
    return open_session(path).run(None, {"x": x})[0]


def ranks(x: Array, window: tuple[int, int], rank: int, border: str) -> Array:
    """By scipy, channel by channel; its ranks count from 0."""
    planes = x.reshape(-1, *x.shape[2:])
    return np.stack([ndimage.rank_filter(p, rank - 1, size=window, mode=MODES[border]) for p in planes]).reshape(
        x.shape
    )


@pytest.mark.parametrize(
    ("window", "profile", "border"),
    [
        *product([(3, 3), (1, 7), (4, 3)], IMAGE_PROFILES, MODES),
        *(((5, 5), profile, "reflect") for profile in IMAGE_PROFILES),
        *(((7, 1), profile, "edge") for profile in IMAGE_PROFILES),
        *(((9, 9), "minmax", border) for border in MODES),
        ((7, 7), "structured", "reflect"),
    ],
)
def test_scipy_in_every_pixel(window: tuple[int, int], profile: str, border: str, tmp_path: Path) -> None:
    even: dict[str, Any] = (
        {"even": "upper"} if window[0] * window[1] % 2 == 0 else {}
    )  # scipy's median of an even number
    path = export_model(window=window, profile=profile, border=border, out=tmp_path, **even)
    rng, running = np.random.default_rng(0), open_session(path)
    for h, w in SIZES:
        x = rng.integers(0, 256, (2, 3, h, w)).astype(np.float32)
        y = running.run(None, {"x": x})[0]
        truth = ranks(x, window, window[0] * window[1] // 2 + 1, border)
        assert y.shape == x.shape
        assert (y == truth).all(), f"{h} x {w}: {(y != truth).sum()} pixels"


@pytest.mark.parametrize("profile", IMAGE_PROFILES)
@pytest.mark.parametrize("k", [3, 5])
def test_opencv_in_every_pixel_of_uint8(k: int, profile: str, tmp_path: Path) -> None:
    path = export_model(window=(k, k), profile=profile, dtype="uint8", out=tmp_path)
    rng, running = np.random.default_rng(1), open_session(path)
    for h, w in [*SIZES, (48, 64)]:
        image = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        y = running.run(None, {"x": np.moveaxis(image, -1, 0)[None]})[0]
        assert y.dtype == np.uint8
        assert (np.moveaxis(y[0], 0, -1) == cv2.medianBlur(image, k).reshape(image.shape)).all()
        assert (y == ranks(np.moveaxis(image, -1, 0)[None], (k, k), k * k // 2 + 1, "edge")).all()


def test_large_images(tmp_path: Path) -> None:
    """640 x 480 in three channels; `python tests/benchmarks/bench_images.py --exact` has 1920 x 1080 and other windows."""
    path = export_model(window="5x5", dtype="uint8", out=tmp_path)
    image = np.random.default_rng(2).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    y = run(path, np.moveaxis(image, -1, 0)[None])
    assert (np.moveaxis(y[0], 0, -1) == cv2.medianBlur(image, 5)).all()


@pytest.mark.parametrize("profile", IMAGE_PROFILES)
@pytest.mark.parametrize(
    "asked",
    [{"op": "max"}, {"op": "min"}, {"rank": 3}, {"quantile": 0.75}, {"quantile": 0.5, "method": "lower"}],
    ids=str,
)
def test_other_ranks(asked: dict[str, Any], profile: str, tmp_path: Path) -> None:
    path = export_model(window=(3, 3), profile=profile, out=tmp_path, **asked)
    (rank,) = describe(path)["description"]["ranks"]
    x = np.random.default_rng(3).integers(0, 256, (1, 3, 9, 8)).astype(np.float32)
    assert (run(path, x) == ranks(x, (3, 3), rank, "edge")).all()


@pytest.mark.parametrize("profile", ["structured", "fused"])
def test_between_two_ranks(profile: str, tmp_path: Path) -> None:
    path = export_model(window=(3, 3), quantile=0.3, profile=profile, out=tmp_path)
    x = np.random.default_rng(4).integers(0, 256, (1, 3, 9, 8)).astype(np.float32)
    truth = np.quantile(windows(x, (3, 3), "edge").astype(np.float64), 0.3, axis=-1)
    error = describe(path)["description"]["grid_error"]
    assert 0 < np.abs(run(path, x) - truth).max() <= error < 1e-3


@pytest.mark.parametrize("profile", ["structured", "fused", "minmax"])
@pytest.mark.parametrize("count", [2, 4, 9])
def test_frames(count: int, profile: str, tmp_path: Path) -> None:
    path = export_model(frames=count, profile=profile, out=tmp_path)
    x = np.random.default_rng(5).integers(0, 256, (count, 3, 6, 7)).astype(np.float64)
    dtype = describe(path)["description"]["dtype"]
    y = run(path, x.astype(dtype))
    assert y.shape == (1, 3, 6, 7)
    assert (y[0] == np.median(x, axis=0)).all()


def test_without_a_border_the_output_is_smaller(tmp_path: Path) -> None:
    x = np.random.default_rng(6).integers(0, 256, (2, 3, 9, 12)).astype(np.float32)
    for profile in IMAGE_PROFILES:
        y = run(export_model(window="5x3", border="valid", profile=profile, out=tmp_path), x)
        assert y.shape == (2, 3, 5, 10)
        assert (y == ranks(x, (5, 3), 8, "edge")[:, :, 2:-2, 1:-1]).all()


def test_images_without_pixels(tmp_path: Path) -> None:
    for profile, border in product(IMAGE_PROFILES, MODES):
        path = export_model(window="3x3", border=border, profile=profile, out=tmp_path)
        for shape in ((0, 3, 4, 4), (1, 3, 0, 4), (1, 3, 4, 0)):
            x = np.zeros(shape, np.float32)
            assert run(path, x).shape == shape


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_minmax_takes_every_float(dtype: str, tmp_path: Path) -> None:
    path = export_model(window="3x3", dtype=dtype, out=tmp_path)
    for draw in FLOATS.values():
        x = draw(np.random.default_rng(7), 40, 33, np.dtype(dtype)).reshape(1, 2, 20, 33)
        assert (run(path, x) == np.median(windows(x, (3, 3), "edge"), axis=-1)).all()


@pytest.mark.parametrize("profile", ["structured", "fused"])
def test_float16_holds_8_bit_data_and_refuses_more(profile: str, tmp_path: Path) -> None:
    path = export_model(window="3x3", dtype="float16", profile=profile, out=tmp_path)
    x = np.random.default_rng(8).integers(0, 256, (1, 3, 20, 20)).astype(np.float16)
    assert (run(path, x) == ranks(x.astype(np.float32), (3, 3), 5, "edge")).all()
    export_model(window="3x3", dtype="float16", profile=profile, bits=11, domain=(-1023, 1024), out=tmp_path)
    with pytest.raises(UserError, match="silently wrong in float16, which has 11 digits"):
        export_model(window="3x3", dtype="float16", profile=profile, bits=12, out=tmp_path)
    with pytest.raises(UserError, match="runtimes compute float16 in wider ones"):
        export_model(window="3x3", dtype="float16", profile=profile, inputs="any", out=tmp_path)


@pytest.mark.parametrize("profile", IMAGE_PROFILES)
@pytest.mark.parametrize("given", ["--window 3x3", "--window 1x4 --border reflect", "--window 3x3 --dtype uint8"])
def test_verify_and_describe(given: str, profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given.split(), "--profile", profile, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.onnx")
    assert verify(path, 50).conclusion == "the contract is kept"
    about = describe(path)
    exact = profile == "fused" and "uint8" in given  # nothing is rounded, and no Clip is there
    assert about["proved_profile"] == ("structured" if exact else profile)
    assert about["description"] == json.loads((tmp_path / "manifest.json").read_text())["models"][0]["description"]
    text = "\n".join(describe_lines(about))
    assert "comparators per pixel" in text
    assert "every window of" in text
    assert main(["verify", str(path), "--trials", "20"]) == 0
    assert "the contract is kept" in capsys.readouterr().out


def test_verify_finds_a_wrong_border_and_a_wrong_rank(tmp_path: Path) -> None:
    path = export_model(window="3x3", out=tmp_path)
    for key, value in (("border", "reflect"), ("border", "zero")):
        proto = onnx.load(path)
        next(p for p in proto.metadata_props if p.key == key).value = value
        onnx.save(proto, tmp_path / "other.onnx")
        # reflect and edge are one and the same for one row of border
        assert verify(tmp_path / "other.onnx", 30).kept == (value == "reflect")
    proto = onnx.load(path)
    for node in proto.graph.node:
        if node.op_type == "Max":
            node.op_type = "Min"
            break
    onnx.save(proto, tmp_path / "other.onnx")
    assert not verify(tmp_path / "other.onnx", 30).kept


def test_a_graph_that_is_not_of_its_profile_is_named(tmp_path: Path) -> None:
    path = export_model(window="3x3", profile="structured", out=tmp_path)
    proto = onnx.load(path)
    assert {n.op_type for n in proto.graph.node} == {"Relu", "Add", "Sub", "Slice", "Concat"}
    next(n for n in proto.graph.node if n.op_type == "Relu").op_type = "Abs"
    onnx.save(proto, path)
    assert prove_profile(proto).profile is None
    with pytest.raises(UserError, match="says it is structured, but its graph is not: Abs is neither"):
        describe(path)


@pytest.mark.parametrize(
    ("key", "value"), [("window", "[3, 4]"), ("window", "null"), ("border", "round"), ("comparators", "-1"), ("d", "8")]
)
def test_damaged_descriptions_are_named(key: str, value: str, tmp_path: Path) -> None:
    path = export_model(window="3x3", out=tmp_path)
    proto = onnx.load(path)
    next(p for p in proto.metadata_props if p.key == key).value = value
    onnx.save(proto, path)
    with pytest.raises(UserError, match="the description in the file is damaged"):
        describe(path)


def test_a_file_for_images_is_no_net(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a filter for images"):
        load(export_model(window="3x3", out=tmp_path))


BAD: list[tuple[str, str]] = [
    ("--window 5", "two sizes HxW, such as 5x5, not '5'"),
    ("--window 0x3", "must have from 2 to 441 pixels, not 0x3"),
    ("--window 1x1", "must have from 2 to 441 pixels"),
    ("--window 99x99", "must have from 2 to 441 pixels"),
    ("--window 3x3 --frames 5", "ask for different things"),
    ("--frames 1", "--frames must be from 2 to 441, not 1"),
    ("--window 3x3 --d 9", "leave --d out"),
    ("--window 3x3 --construction batcher", "leave --construction out"),
    ("--window 3x3 --failure 0.1", "image filters do not use --failure"),
    ("--window 3x3 --certificate", "image filters do not use --certificate"),
    ("--window 3x3 --op sort", "ask for a rank"),
    ("--window 3x3 --rank 2 --rank 3", "give one --rank"),
    ("--window 3x3 --rank 10", "ranks of 9 numbers are 1 to 9"),
    ("--window 3x3 --border round", "--border must be one of edge, reflect, zero, valid"),
    ("--window 3x3 --profile dense", "image filters are written as structured, fused, minmax"),
    ("--window 3x3 --channels 3", "leave --channels out"),
    ("--frames 3 --border edge", "leave --border out"),
    ("--frames 3 --batch 3", "leave --batch out"),
    ("--window 3x3 --bits 8", "there is no grid, so leave --bits out"),
    ("--window 3x3 --dtype uint8 --profile structured --domain 0 1", "leave --domain out"),
    ("--window 1x4 --dtype uint8", "take --even lower or upper"),
    ("--window 3x3 --quantile 0.3", "an interpolation between two ranks rounds"),
    ("--window 3x3 --profile structured --border zero --domain 1 2 --bits 8", "has none"),
    ("--window 3x3 --profile structured --bits 30 --dtype float32", "silently wrong in float32"),
    ("--window 3x3 --profile structured --dtype float32 --domain 0 1e38 --bits 8", "too near the ends"),
    ("--border edge", "needs --window or --frames"),
    ("--d 9 --dtype uint8", "needs --window or --frames"),
]


@pytest.mark.parametrize(("given", "cause"), BAD)
def test_bad_options(given: str, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given.split(), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert cause in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "out").exists(), "nothing is written"


def test_the_library_says_it_its_own_way(tmp_path: Path) -> None:
    for given, cause in (
        ({"window": (3, 3), "d": 9}, "leave d out"),
        ({"window": "3by3"}, "window must be two sizes HxW"),
        ({"window": (3, 3.5)}, "window must be a whole number"),
        ({"window": (3, 3), "layout": "tflite", "size": (4, 4), "channels": 0}, "channels must be from 1 to 4096"),
    ):
        with pytest.raises(UserError) as caught:
            export_model(out=tmp_path / "out", **given)
        assert cause in str(caught.value)
        assert "--" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_names_and_bytes_are_the_same_from_both_doors(tmp_path: Path) -> None:
    path = export_model(window=(5, 3), border="zero", profile="structured", domain=(-1, 1), bits=10, out=tmp_path)
    assert path.name == "median-window5x3-zero-b10-from-1to1-structured.onnx"
    words = "--window 5x3 --border zero --profile structured --domain -1 1 --bits 10"
    assert main([*words.split(), "--out", str(tmp_path / "cli")]) == 0
    assert (tmp_path / "cli" / path.name).read_bytes() == path.read_bytes()
    assert export_model(frames=9, out=tmp_path).name == "median-frames9.onnx"
