"""The command line, as a user meets it: files, manifest, describe, verify."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import exporter
from exporter.cli.console import main as console
from exporter.cli.parser import VERBS, main
from exporter.cli.theory import COMMANDS as THEORY
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import install
from exporter.options import OPTIONS
from tests.running import parsed

DESCRIPTION = {
    "construction", "theorem", "op", "d", "ranks", "bits", "dtype", "domain", "exact_on_grid", "depth", "width", "size",
    "nnz", "max_weight", "failure_bound", "profile", "producer", "version",
}  # fmt: skip


def python_m_exporter(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exporter", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def export(out: Path, *args: object) -> list[str]:
    """Run the export in this process; returns the names of the .onnx files in the directory."""
    assert main(["--out", str(out), *map(str, args)]) == 0
    return sorted(p.name for p in out.glob("*.onnx"))


def manifest(out: Path) -> dict[str, dict[str, object]]:
    return {m["file"]: m for m in json.loads((out / "manifest.json").read_bytes())["models"]}


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"onnx-median {exporter.__version__}\n"


def test_default_names_and_manifest(tmp_path: Path) -> None:
    done = python_m_exporter(
        "--d", 9, "--construction", "depth3", "--construction", "batcher", "--out", tmp_path / "new"
    )
    assert (done.returncode, done.stderr) == (0, "")
    out = tmp_path / "new"
    assert sorted(p.name for p in out.iterdir()) == [
        "manifest.json", "median-batcher-d9.onnx", "median-depth3-d9.onnx",
    ]  # fmt: skip
    for name, entry in manifest(out).items():
        data = (out / name).read_bytes()
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["bytes"] == len(data)
        assert set(entry["description"]) >= DESCRIPTION  # type: ignore[call-overload]
        assert name in done.stdout


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--op", "max"], "max-batcher-d6"),
        (["--op", "min"], "min-batcher-d6"),
        (["--op", "sort"], "sort-batcher-d6"),
        (["--rank", 2], "rank2-batcher-d6"),
        (["--rank", 5, "--rank", 1], "rank5-1-batcher-d6"),
        (["--quantile", 0.25, "--quantile", 0.75], "q0.25-0.75-batcher-d6"),
        (["--quantile", 0.3, "--method", "nearest"], "q0.3-nearest-batcher-d6"),
        (["--even", "lower"], "median-lower-batcher-d6"),
        (["--even", "upper"], "median-upper-batcher-d6"),
        (["--bits", 8], "median-batcher-d6-b8"),
        (["--bits", 8, "--domain", 0, 255], "median-batcher-d6-b8-from0to255"),
        (["--domain", -1, 1], "median-batcher-d6-from-1to1"),
        (["--dtype", "float64"], "median-batcher-d6-float64"),
        (["--profile", "dense"], "median-batcher-d6-dense"),
        (["--profile", "fused", "--certificate"], "median-batcher-d6-certificate-fused"),
    ],
)
def test_other_choices_are_in_the_name(tmp_path: Path, options: list[object], name: str) -> None:
    assert export(tmp_path, "--d", 6, "--construction", "batcher", *options) == [f"{name}.onnx"]
    assert main(["verify", str(tmp_path / f"{name}.onnx"), "--trials", "20"]) == 0


def test_metadata_is_the_description(tmp_path: Path) -> None:
    export(tmp_path, "--d", 6, "--construction", "depth3", "--bits", 8, "--domain", 0, 255)
    (path,) = tmp_path.glob("*.onnx")
    props = {p.key: p.value for p in onnx.load(path).metadata_props}
    assert set(props) >= DESCRIPTION
    assert (props["producer"], props["version"]) == ("onnx-median", exporter.__version__)
    assert json.loads(props["domain"]) == [0, 255]
    assert json.loads(props["ranks"]) == [3, 4]
    assert json.loads(props["exact_on_grid"]) is True
    assert (props["construction"], props["dtype"]) == ("depth3", "float32")
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["construction"] == "depth3"


def test_json_of_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path, "--d", 4, "--construction", "batcher", "--json")
    printed = json.loads(capsys.readouterr().out)
    assert printed["skipped"] == []
    assert printed["written"] == list(manifest(tmp_path).values())


def test_what_cannot_be_built_is_skipped_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And an option is for those that take it: --epsilon is of depth3 alone."""
    names = export(tmp_path, "--d", 3, "--epsilon", 0.1)
    printed = capsys.readouterr()
    assert "skipped depth5: 3 entries are too few to sample from: use depth3" in printed.err.splitlines()
    assert "mean squared error at most 0.1" in printed.out
    assert names == ["median-batcher-d3.onnx", "median-depth3-d3-eps0.1.onnx", "median-radix-d3.onnx"]


def test_describe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path, "--d", 5, "--construction", "depth3", "--profile", "fused", "--bits", 8)
    (path,) = tmp_path.glob("*.onnx")
    capsys.readouterr()
    assert main(["describe", str(path), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["proved_profile"] == about["description"]["profile"] == "fused"
    assert about["bytes"] == path.stat().st_size
    assert about["ops"]["Clip"] > 0
    assert about["description"]["widths"] == [5, 5, 5, 55, 20]
    assert about["description"]["guard_layers"] == 3
    assert about["inputs"] == {"x": ["batch_size", 5]}
    assert main(["describe", str(path)]) == 0
    text = capsys.readouterr().out
    for part in (
        "3 + 3 (rounding and clamping)",
        "55, 20",
        "Exact on the grid.",
        "[0, 1], grid of 8 bits",
        "at most 0.001954 (0.5 grid steps) from",
        "Clip",
        "proved       fused",
    ):
        assert part in text


def test_verify(tmp_path: Path) -> None:
    export(tmp_path, "--d", 5, "--construction", "depth3")
    done = python_m_exporter("verify", tmp_path / "median-depth3-d5.onnx", "--trials", 30, "--json")
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert [f["family"] for f in result["families"]] == [
        "uniform", "grid", "sorted", "reversed", "ties", "constant", "two-values", "8-bit", "clustered", "range-ends",
        "off-grid", "off-grid-close", "half-steps", "last-digits", "outside",
    ]  # fmt: skip
    for f in result["families"][:10]:
        assert (f["trials"], f["exact"], f["max_error"], f["mse"]) == (30, 1, 0, 0)
    for f in result["families"][10:]:
        assert (f["wrong"], f["kept"]) == (0, True)
        assert f["max_error"] <= 2.0**-25
    assert result["conclusion"] == "the contract is kept"


def tampered(path: Path) -> Path:
    """The same file with one weight of the last layer changed."""
    proto = onnx.load(path)
    tensor = proto.graph.initializer[-2]
    values = numpy_helper.to_array(tensor).copy()
    values.flat[0] *= 1.5
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("construction", ["depth3", "batcher"])
def test_verify_finds_a_broken_contract(tmp_path: Path, construction: str, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path, "--d", 5, "--construction", construction, "--profile", "dense", "--bits", 8)
    (path,) = tmp_path.glob("*.onnx")
    capsys.readouterr()
    assert main(["verify", str(tampered(path)), "--trials", "20"]) == 1
    assert "broken: " in capsys.readouterr().out
    assert python_m_exporter("verify", path, "--trials", 20).returncode == 1


def test_describe_refuses_a_file_that_is_not_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path, "--d", 5, "--construction", "depth3", "--profile", "structured", "--bits", 8)
    (path,) = tmp_path.glob("*.onnx")
    proto = onnx.load(path)
    proto.graph.node[-1].output[0] = "before"
    bounds = [numpy_helper.from_array(np.array(v, np.float32), name) for v, name in ((0, "lo"), (1, "hi"))]
    proto.graph.initializer.extend(bounds)
    proto.graph.node.append(helper.make_node("Clip", ["before", "lo", "hi"], ["y"]))
    onnx.save(proto, path)
    assert main(["describe", str(path)]) == 2
    assert "says it is structured, but its graph is not" in capsys.readouterr().err


def foreign(path: Path) -> Path:
    """A median by other means: [N, 5] in, the middle of the sorted values out."""
    onnx.save(
        parsed("""(float[N, 5] in) => (float[N, 1] out) <int64[1] k = {3}> {
            top, where = TopK<axis = 1>(in, k)
            out = ReduceMin<axes = [1]>(top)
        }"""),
        path,
    )
    return path


def test_foreign_files_are_described_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = foreign(tmp_path / "topk.onnx")
    assert main(["describe", str(path)]) == 0
    assert "not written by onnx-median" in capsys.readouterr().out
    assert main(["verify", str(path), "--trials", "20", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["contract"] == "no promise stated"
    assert all(f["exact"] == 1 for f in result["families"])


def test_a_fixed_batch_is_fed_in_pieces(tmp_path: Path) -> None:
    path = foreign(tmp_path / "batch.onnx")
    proto = onnx.load(path)
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    onnx.save(proto, path)
    assert main(["verify", str(path), "--trials", "8"]) == 0


def test_concurrent_exports_keep_every_manifest_entry(tmp_path: Path) -> None:
    sizes = [3, 4, 5, 6]
    with ThreadPoolExecutor(len(sizes)) as pool:
        runs = pool.map(lambda d: python_m_exporter("--d", d, "--construction", "batcher", "--out", tmp_path), sizes)
        assert [done.returncode for done in runs] == [0] * len(sizes)
    assert sorted(manifest(tmp_path)) == [f"median-batcher-d{d}.onnx" for d in sizes]
    assert not list(tmp_path.glob(".*")), "no temporary files are left"


def test_exporting_again_replaces_the_entry(tmp_path: Path) -> None:
    export(tmp_path, "--d", 4, "--construction", "batcher")
    export(tmp_path, "--d", 4, "--construction", "batcher")
    export(tmp_path, "--d", 5, "--construction", "batcher")
    assert len(manifest(tmp_path)) == 2


def shown_help(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main([*args] if "--help-all" in args else [*args, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_rewrite_explains_itself_without_its_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith(("onnx_ir", "exporter.frontends.rewriting."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    assert "--calibrate" in shown_help(capsys, "rewrite")
    assert main(["rewrite", str(foreign(tmp_path / "topk.onnx")), "--out", str(tmp_path / "new.onnx")]) == 2
    assert capsys.readouterr().err == f"error: rewrite needs onnx_ir: {install('rewrite')}\n"
    assert not (tmp_path / "new.onnx").exists()


def test_help_is_one_screen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 columns and 40 lines; it lists every command."""
    monkeypatch.setenv("COLUMNS", "80")
    for args in ((), ("export",), ("filter",)):
        lines = shown_help(capsys, *args).splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 80
    listed = [line.split()[0] for line in shown_help(capsys).splitlines() if re.match(r"  \w", line)]
    assert set(listed) > set(VERBS) - set(THEORY)


def test_help_all_lists_every_option_with_its_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    export, images = (shown_help(capsys, verb, "--help-all") for verb in ("export", "filter"))
    for option in OPTIONS.values():
        text = images if option.group == "image" else export
        (about,) = re.findall(rf"^  --{option.name.replace('_', '-')} (.*?)(?=^  -|^$)", text, re.MULTILINE | re.DOTALL)
        assert f"(default: {option.default})" in about
    for title in ("what is computed:", "your data:", "the file:", "research:"):
        assert title in export.splitlines()
    assert "--window" not in export
    assert "--failure" not in images
    for name in CONSTRUCTIONS:
        assert re.search(rf"^  {name} +\w", export, re.MULTILINE), name
    assert shown_help(capsys, "--help-all") == export.replace("exporter export --d D", "exporter --d D")


@pytest.mark.parametrize(
    ("verb", "old"),
    [
        (["export", "--d", "5", "--construction", "batcher"], ["--d", "5", "--construction", "batcher"]),
        (["filter", "--window", "3x3", "--dtype", "uint8"], ["--window", "3x3", "--dtype", "uint8"]),
        (["filter", "--frames", "3"], ["export", "--frames", "3"]),
    ],
)
def test_a_verb_writes_what_the_options_alone_write(verb: list[str], old: list[str], tmp_path: Path) -> None:
    for entry, words in (("a", verb), ("b", old)):
        assert main([*words, "--out", str(tmp_path / entry)]) == 0
    assert console([*verb, "--out", str(tmp_path / "c")]) == 0
    found = [{path.name: path.read_bytes() for path in (tmp_path / entry).iterdir()} for entry in "abc"]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 2


ALL_OF_25 = {
    f"median-{name}-d25" for name in ("radix", "depth3", "batcher", "depth5", "linear46", "linear18", "compact")
}
EXAMPLES = {
    "": {"median-radix-d25", "median-window5x5"},
    "--help-all": {"median-batcher-d25-b8-from0to255-dense", "q0.25-0.5-0.75-radix-d101"} | ALL_OF_25,
    "filter": {"median-window5x5-uint8", "median-frames9"},
    "describe": {"median-batcher-d9"},
    "verify": {"median-batcher-d9"},
    "audit": {"median-depth3-d9-dense"},
    "reduce": {"rank5-batcher-d9", "max-from-rank5-batcher-d9"},
    "frontier": set(),
    "rewrite": {"median-radix-d64-latency-fused", "new"},
    "atlas": set(),
    "theory": set(),
    "theory audit": {"median-depth3-d9-dense"},
}


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_of_the_help_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write what they say."""
    monkeypatch.chdir(tmp_path)
    text = shown_help(capsys, *command.split())
    examples = [
        line.split()[3:] for line in text.partition("example")[2].splitlines() if line.startswith("  python -m")
    ]
    assert examples
    for line in examples:
        assert main(line) == 0, line
    assert {path.stem for path in Path("models").glob("*.onnx")} == EXAMPLES[command]
    assert Path("repository/median-radix-d25/config.pbtxt").exists() == (command == "--help-all")
    for name in re.findall(r"models/\S+\.onnx", text):
        assert Path(name).exists() or "NAME" in name, name


def test_the_pixel_filter_of_the_help_is_a_median_filter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = shown_help(capsys, "--help-all")
    first = next(line for line in text.splitlines() if line.startswith("  python -m") and "255" in line)
    assert main(first.split()[3:]) == 0
    (path,) = Path("models").glob("*.onnx")
    assert path.stat().st_size < 100_000
    assert {node.op_type for node in onnx.load(path).graph.node} == {"Gemm", "Relu"}
    x = np.random.default_rng(0).integers(0, 256, (500, 25)).astype(np.float32)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert (session.run(None, {"x": x})[0][:, 0] == np.median(x, axis=1)).all()
