"""The table of speeds: what `fastest` chooses by, what a damaged one costs, and that the package has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from exporter.cli.parser import main
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.formats.speed_table import SHIPPED, SPEED_TABLE, SpeedTable, read_speed_table
from exporter.library import export_model
from exporter.passes.profiles import PROFILES


def timed(construction: str, profile: str, tune: str, times: float) -> dict[str, Any]:
    return {"construction": construction, "profile": profile, "tune": tune, "times_topk": times}


def written(folder: Path, *rows: tuple[int, int, list[tuple[str, str, str, float]]]) -> Path:
    """A table beside models that are to come."""
    folder.mkdir(exist_ok=True)
    made = [
        {"d": d, "batch": n, "topk_us": 10.0, "files": {f"file{i}": timed(*f) for i, f in enumerate(files)}}
        for d, n, files in rows
    ]
    (folder / SPEED_TABLE).write_text(json.dumps({"format": 1, "measured": {}, "rows": made}))
    return folder


RADIX, DEPTH3 = ("radix", "fused", "throughput"), ("depth3", "fused", "throughput")
BATCHER, MINMAX = ("batcher", "fused", "latency"), ("batcher", "minmax", "throughput")


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"d": 9}, "median-batcher-d9-minmax"),
        ({"d": 9, "bits": 8}, "median-depth3-d9-b8-fused"),
        ({"d": 9, "certificate": True}, "median-depth3-d9-certificate-fused"),
        ({"d": 9, "tune": "latency"}, "median-batcher-d9-latency-fused"),
        ({"d": 9, "batch": 1}, "median-batcher-d9-latency-fused-batch1"),
        ({"d": 9, "profile": "minmax", "tune": "latency"}, "median-batcher-d9-minmax"),
        ({"d": 9, "profile": "structured"}, "median-radix-d9-structured"),
        ({"d": 11}, "median-batcher-d11-minmax"),
        ({"d": 20}, "median-radix-d20-fused"),
        ({"d": 20, "op": "sort"}, "sort-depth3-d20-fused"),
        ({"d": 9, "quantile": [0.3]}, "q0.3-depth3-d9-fused"),
    ],
)
def test_fastest_goes_by_the_table_beside_the_models(tmp_path: Path, given: dict[str, Any], name: str) -> None:
    """Nearest length, nearest batch, and the first that can be built as it is asked for."""
    out = written(
        tmp_path / "models",
        (9, 1, [(*RADIX, 3.0), (*BATCHER, 0.5), (*MINMAX, 0.9)]),
        (9, 64, [(*MINMAX, 0.5), (*DEPTH3, 0.7)]),
        (25, 64, [(*RADIX, 0.2), (*DEPTH3, 0.7)]),
    )
    path = export_model(construction="fastest", out=out, **given)
    assert path.stem == name
    assert export_model(
        construction=path.stem.split("-")[1], out=tmp_path / "named", **chosen(path, given)
    ).read_bytes() == (path.read_bytes()), "what was chosen is the file that the same options name"


def chosen(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    (profile,) = set(path.stem.split("-")) & set(PROFILES)
    return {**given, "profile": profile, "tune": "latency" if "-latency" in path.stem else None}


def test_the_command_line_reads_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = written(tmp_path / "models", (25, 64, [(*RADIX, 0.2), (*MINMAX, 0.7)]))
    assert main(["--d", "25", "--construction", "fastest", "--out", str(out)]) == 0
    assert "median-radix-d25-fused.onnx" in capsys.readouterr().out
    (out / SPEED_TABLE).write_text("{}")
    assert main(["--d", "25", "--construction", "fastest", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert f"{out / SPEED_TABLE} cannot be read as a table of speeds" in told
    assert f"delete it, or measure it again: python -m exporter tune --out {out}" in told


GOOD = {"d": 9, "batch": 1, "topk_us": 9.5, "files": {"a": timed(*RADIX, 1.0)}}
BAD: list[dict[str, Any]] = [
    {"d": 0}, {"d": "9"}, {"d": 9.5}, {"d": True}, {"batch": -1}, {"topk_us": 0}, {"topk_us": "9"}, {"files": {}},
    {"files": []}, {"files": {"a": 1}}, {"files": {"a": {}}}, {"files": {"a": timed(*RADIX, float("nan"))}},
    {"files": {"a": timed(*RADIX, -1.0)}}, {"files": {"a": {**timed(*RADIX, 1.0), "construction": 1}}},
]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        "", "no JSON", "[]", "1", "{}", '{"format": 1}', '{"format": 1, "rows": []}', '{"format": 1, "rows": [1]}',
        json.dumps({"format": 2, "rows": [GOOD]}),
        *(json.dumps({"format": 1, "rows": [GOOD | change]}) for change in BAD),
        "[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_table_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / SPEED_TABLE).write_text(content)
    with pytest.raises(UserError, match="cannot be read as a table of speeds"):
        read_speed_table(tmp_path / SPEED_TABLE)


def test_a_construction_of_another_version_is_passed_over(tmp_path: Path) -> None:
    out = written(
        tmp_path / "models", (25, 64, [("unheard", "fused", "latency", 0.1), ("radix", "new", "x", 0.1), (*RADIX, 2.0)])
    )
    assert export_model(d=25, construction="fastest", out=out).stem == "median-radix-d25-fused"


def test_the_shipped_table() -> None:
    """It knows every length and batch of the command's own, and every name in it."""
    table = read_speed_table(SHIPPED)
    assert len(table.rows) >= 30
    for row in table.rows:
        for each in row.files.values():
            assert each.construction in CONSTRUCTIONS
            assert each.profile in PROFILES
            assert each.tune in ("throughput", "latency")


def test_tune_measures_and_the_export_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "models"
    assert main(["tune", "--d", "5", "--batch", "1", "3", "--seconds", "1", "--out", str(out)]) == 0
    assert str(out / SPEED_TABLE) in capsys.readouterr().out
    table = read_speed_table(out / SPEED_TABLE)
    assert [(row.d, row.batch) for row in table.rows] == [(5, 1), (5, 3)]
    best = table.ranking(5, 1)[0]
    path = export_model(d=5, construction="fastest", tune="latency", out=out)
    assert path.stem.split("-")[1] == best.construction
    x = np.random.default_rng(0).random((50, 5), dtype=np.float32).round(3)
    x = (np.round(x * 2**24) / 2**24).astype(np.float32)
    session = ort.InferenceSession(str(path))
    kind = np.float32 if session.get_inputs()[0].type == "tensor(float)" else np.float64
    assert np.array_equal(session.run(None, {"x": x.astype(kind)})[0][:, 0], np.median(x, axis=1))


def test_seconds_of_a_file_by_name(tmp_path: Path) -> None:
    table: SpeedTable = read_speed_table(
        written(tmp_path, (9, 64, [(*MINMAX, 0.5)]), (9, 2, [(*MINMAX, 3.0)])) / SPEED_TABLE
    )
    assert table.seconds("file0") == pytest.approx(10e-6 * 3 / 2)
    assert table.seconds("file1") is None
