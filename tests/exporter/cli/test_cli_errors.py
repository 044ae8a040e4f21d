"""Bad input: one line on stderr that names the cause, exit status 2, no traceback, and nothing lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, numpy_helper

from exporter.cli.parser import main
from exporter.errors import UserError
from exporter.library import export_model
from exporter.net import load
from tests.running import parsed

BAD = {
    "d = 0": (["--d", "0"], "d = 0"),
    "d = 1e9": (["--d", "1000000000", "--op", "max", "--construction", "tree-max"], "up to d = 16777216"),
    "d < 0": (["--d", "-5"], "d = -5"),
    "d no number": (["--d", "many"], "--d must be a whole number, not 'many'"),
    "no d": ([], "--d"),
    "unknown construction": (["--d", "5", "--construction", "magic"], "unknown construction 'magic': choose from"),
    "one known, one not": (["--d", "5", "--construction", "batcher", "--construction", "magic"], "unknown construction"),
    "rank 0": (["--d", "5", "--rank", "0"], "rank 0 is out of range"),
    "rank beyond d": (["--d", "5", "--rank", "2", "--rank", "6"], "rank 6 is out of range: ranks of 5 numbers are 1 to 5"),
    "quantile beyond 1": (["--d", "5", "--quantile", "1.5"], "quantile 1.5 is out of range"),
    "quantile nan": (["--d", "5", "--quantile", "nan"], "out of range"),
    "unknown op": (["--d", "5", "--op", "mode"], "--op must be one of median, max, min, sort, not 'mode'"),
    "op and rank": (["--d", "5", "--op", "max", "--rank", "2"], "different things"),
    "bits 0": (["--d", "5", "--bits", "0"], "--bits must be between 1 and 52"),
    "bits 60": (["--d", "5", "--bits", "60"], "--bits must be between 1 and 52"),
    "bits beyond the dtype": (
        ["--d", "5", "--construction", "depth3", "--bits", "40", "--dtype", "float32"], "is the most that works",
    ),
    "bits beyond batcher": (
        ["--d", "5", "--construction", "batcher", "--bits", "30", "--dtype", "float32"], "--bits 24 is the most that works",
    ),
    "domain reversed": (["--d", "5", "--domain", "1", "0"], "the domain must be two finite numbers LO < HI"),
    "domain infinite": (["--d", "5", "--domain", "0", "inf"], "the domain must be"),
    "domain nan": (["--d", "5", "--domain", "nan", "1"], "the domain must be"),
    "dense beyond the budget": (
        ["--d", "2048", "--construction", "depth3", "--profile", "dense"], "GiB as float32): use --profile structured",
    ),
    "depth3 too large": (["--d", "100000", "--construction", "depth3"], "all pairs of 100000 entries"),
    "epsilon too small": (["--d", "2048", "--construction", "depth3", "--epsilon", "1e-3"], "smallest ε that works"),
    "epsilon out of range": (["--d", "5", "--construction", "depth3", "--epsilon", "2"], "--epsilon must be above 0"),
    "epsilon of batcher": (["--d", "5", "--construction", "batcher", "--epsilon", "0.1"], "batcher does not use --epsilon"),
    "an option twice": (["--d", "5", "--bits", "8", "--bits", "9"], "--bits is given twice"),
    "a length twice": (["--d", "5", "--d", "5"], "--d is given twice"),
    "trials twice": (["verify", "file.onnx", "--trials", "8", "--trials=9"], "--trials is given twice"),
    "unknown option": (["--d", "5", "--frobnicate"], "unrecognized arguments"),
    "mistyped option": (["--d", "5", "--bist", "8"], "did you mean '--bits'?"),
    "a mistyped verb": (["exprot", "--d", "5"], "unknown command 'exprot': did you mean 'export'?"),
    "a filter of nothing": (["filter"], "required: --window or --frames (python -m exporter filter --help"),
    "a filter of vectors": (["filter", "--window", "3x3", "--d", "5"], "leave --d out"),
    "a filter of vectors alone": (["filter", "--d", "5"], "required: --window or --frames"),
    "a filter with an option of vectors": (["filter", "--frames", "3", "--radix", "4"], "image filters do not use --radix"),
    "a bad option of export": (["export", "--d", "5", "--bist", "8"], "(python -m exporter export --help explains"),
    "mistyped command": (["descrbe", "file.onnx"], "unknown command 'descrbe': did you mean 'describe'?"),
    "no command like it": (
        ["frobnicate"],
        "the commands are export, filter, describe, verify, prove, properties, benchmark, audit, reduce",
    ),
    "a file and no command": (["file.onnx"], "a command comes first, as in python -m exporter describe file.onnx"),
    "a command that is late": (["--d", "5", "verify"], "a command comes first, as in python -m exporter verify FILE"),
    "negative seed of verify": (["verify", "file.onnx", "--seed", "-1"], "must be a whole number, 0 or more, not '-1'"),
    "seed of an exact reduction": (["reduce", "file.onnx", "--seed", "1"], "--mode l2"),
    "atlas without d": (["atlas"], "--d (or --plots-only)"),
    "atlas of a failure that nothing uses": (
        ["atlas", "--d", "9", "--construction", "radix", "--failure", "0.1"], "none of these uses --failure",
    ),
    "atlas at no failure": (["atlas", "--d", "9", "--failure", "nan"], "--failure must be a probability"),
    "atlas of no time": (["atlas", "--d", "9", "--seconds", "nan"], "--seconds must be a number above 0"),
    "atlas of pictures and more": (["atlas", "--plots-only", "--trials", "9"], "--trials changes nothing"),
    "pictures of no atlas": (["atlas", "--plots-only"], "no such file"),
}  # fmt: skip


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(("args", "cause"), BAD.values(), ids=BAD)
def test_bad_options(args: list[str], cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*args, "--out", str(tmp_path / "out")]) == 2
    assert cause.lower() in one_line(capsys).lower()
    assert not (tmp_path / "out").exists(), "nothing is written"


@pytest.mark.parametrize("args", [["--d", "0"], ["--d", "5", "--rank", "9"], ["--d", "5", "--construction", "x"]])
def test_bad_options_from_a_shell(args: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "exporter", *args, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_directory_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("here first")
    assert main(["--d", "5", "--out", str(tmp_path / "file" / "models")]) == 2
    assert "cannot write to" in one_line(capsys)
    assert main(["--d", "5", "--out", str(tmp_path / "file")]) == 2
    assert "cannot write to" in one_line(capsys)
    assert (tmp_path / "file").read_text() == "here first"


def small(tmp_path: Path) -> Path:
    assert main(["--d", "3", "--construction", "batcher", "--out", str(tmp_path)]) == 0
    return tmp_path / "median-batcher-d3.onnx"


def damage_truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def damage_text(path: Path) -> None:
    path.write_text("not a model")


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 20)


def damage_missing(path: Path) -> None:
    path.unlink()


def damage_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def damage_unknown_operator(path: Path) -> None:
    proto = onnx.load(path)
    proto.graph.node[0].op_type = "Frobnicate"
    path.write_bytes(proto.SerializeToString())


def test_a_graph_that_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged index passes every check of the file, and fails in the run."""
    path = export_model(32, "compact", tmp_path, failure=0.1)
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.INT64 and any(
            n.op_type == "Gather" and tensor.name in n.input for n in proto.graph.node
        ):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 10**6, tensor.name))
    path.write_bytes(proto.SerializeToString())
    assert main(["verify", str(path)]) == 2
    assert "onnxruntime does not run it" in one_line(capsys)
    with pytest.raises(UserError, match="onnxruntime does not run it"):
        load(path)([0.5] * 32)


def damage_shape(path: Path) -> None:
    """No entries, in a shape that is too large for any array."""
    export_model(4, "batcher", path.parent, bits=8, profile="dense").replace(path)
    proto = onnx.load(path)
    proto.graph.initializer[0].dims[:] = [0, *[2**20] * 8]
    proto.graph.initializer[0].ClearField("raw_data")
    path.write_bytes(proto.SerializeToString())


@pytest.mark.parametrize("command", ["describe", "verify", "audit"])
@pytest.mark.parametrize(
    "damage",
    [
        damage_truncated,
        damage_text,
        damage_empty,
        damage_noise,
        damage_missing,
        damage_directory,
        damage_unknown_operator,
        damage_shape,
    ],
    ids=lambda f: f.__name__,
)
def test_files_that_are_no_models(
    command: str, damage: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small(tmp_path)
    damage(path)  # type: ignore[operator]
    capsys.readouterr()
    assert main([command, str(path)]) == 2
    assert path.name in one_line(capsys)


FOREIGN = {
    "two inputs": "float[N, 3] a, float[N, 3] b",
    "an image": "float[N, 3, 8, 8] a",
    "no fixed d": "float[N, d] a",
    "integers": "int64[N, 3] a",
}


@pytest.mark.parametrize("inputs", FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_of_another_kind(inputs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = inputs.partition(" a")[0]
    onnx.save(parsed(f"({inputs}) => ({output} out) {{ out = Identity(a) }}"), tmp_path / "foreign.onnx")
    assert main(["verify", str(tmp_path / "foreign.onnx")]) == 2
    assert "foreign.onnx" in one_line(capsys)


@pytest.mark.parametrize("trials", ["0", "-1", "few"])
def test_trials(trials: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small(tmp_path)
    capsys.readouterr()
    assert main(["verify", str(path), "--trials", trials]) == 2
    assert "--trials" in one_line(capsys)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "models": []}', '{"format": 1, "models": 3}', "\x00\xff"])
def test_a_manifest_that_is_not_ours_is_not_touched(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text, encoding="latin-1")
    before = path.read_bytes()
    assert main(["--d", "3", "--construction", "batcher", "--out", str(tmp_path)]) == 2
    assert "is not a manifest of onnx-median" in one_line(capsys)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest.json"], "no file without an entry"


@pytest.mark.parametrize(("call", "nth"), [("replace", 1), ("fsync", 1), ("fsync", 2)])
def test_a_failed_write_leaves_what_was_there(
    call: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full at the first or second file: neither model nor manifest changes before both are written."""
    small(tmp_path).write_bytes(b"an older file")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    capsys.readouterr()
    real, calls = getattr(os, call), []

    def full(*args: object) -> object:
        calls.append(args)
        if len(calls) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(os, call, full)
    assert main(["--d", "3", "--construction", "batcher", "--out", str(tmp_path)]) == 2
    assert "No space left on device" in one_line(capsys)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_refused_export_leaves_what_was_there(tmp_path: Path) -> None:
    small(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for bad in (
        ["--rank", "7"],
        ["--construction", "depth3", "--bits", "40", "--dtype", "float32"],
        ["--construction", "x"],
    ):
        assert main(["--d", "3", *bad, "--out", str(tmp_path)]) == 2
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert [m["file"] for m in json.loads(before["manifest.json"])["models"]] == ["median-batcher-d3.onnx"]


def test_files_become_visible_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data goes to a hidden file beside the target, which is renamed over it."""
    seen: list[tuple[str, str]] = []
    rename = os.replace

    def watch(source: str, target: Path) -> None:
        assert Path(source).stat().st_size > 0
        seen.append((Path(source).name, target.name))
        rename(source, target)

    monkeypatch.setattr(os, "replace", watch)
    small(tmp_path)
    assert [target for _, target in seen] == ["median-batcher-d3.onnx", "manifest.json"]
    assert all(source.startswith(f".{target}.") for source, target in seen)
    assert (tmp_path / "manifest.json").stat().st_mode & 0o777 == 0o644


def redescribed(folder: Path, **changes: str | None) -> Path:
    """A file whose description has other values, or lacks those that are None."""
    path = export_model(5, "batcher", folder, bits=8, profile="dense")
    proto = onnx.load(path)
    said = {p.key: p.value for p in proto.metadata_props} | changes
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {key: value for key, value in said.items() if value is not None})
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(
    "value", [None, "", "null", "-1", "NaN", "9" * 400, "[]", '[{"name": 1, "ranks": [99], "weights": ["a"]}]']
)
@pytest.mark.parametrize(
    "field", ["d", "domain", "outputs", "ranks", "bits", "step", "dtype", "failure_bound", "certificate", "widths"]
)
def test_a_damaged_description(
    field: str, value: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metadata is text that anybody can edit: every command names the field, none trips over it."""
    path = redescribed(tmp_path, **{field: value})
    for command in (["describe"], ["verify", "--trials", "2"], ["audit"], ["reduce", "--out", str(tmp_path / "r")]):
        if field == "widths" and value == "[]":
            continue  # of a network without hidden layers
        assert main([command[0], str(path), *command[1:]]) == 2
        assert f"the description in the file is damaged: {field}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("step", "1", "step = 1, of 8 bits on [0.0, 1.0]"), ("bits", "9", "step = 0.00390625, of 9 bits"),
        ("depth", "3", "depth = 3, of layers of"), ("width", "1", "width = 1, of layers"), ("size", "7", "size = 7, of"),
        ("guard_layers", "99", "guard_layers = 99 at depth"), ("batch", "7", "batch = 7, and the graph takes any number"),
        ("op", "max", "op = max, of ranks [3] of 5"), ("certificate", "true", "1 columns where 3 are needed"),
        ("profile", "tidy", "has the unknown profile 'tidy'"),
    ],
)  # fmt: skip
def test_a_description_that_contradicts_itself(
    field: str, value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every value is a good one of its field, and what it would be printed beside says otherwise."""
    path = redescribed(tmp_path, **{field: value})
    assert main(["verify" if field == "certificate" else "describe", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_an_empty_name_is_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--out $UNSET` gives it: nothing is written into the present directory."""
    monkeypatch.chdir(tmp_path)
    for words in (["--d", "3", "--construction", "batcher"], ["atlas", "--d", "3"]):
        assert main([*words, "--out", ""]) == 2
        assert "--out must be a directory, not ''" in capsys.readouterr().err
    with pytest.raises(UserError, match="out must be a directory, not ''"):
        export_model(3, "batcher", "")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_while_loading_is_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C in the first second, while numpy is loaded."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise KeyboardInterrupt")
    ran = subprocess.run(
        [sys.executable, "-m", "exporter", "--help"],
        cwd=Path(__file__).parents[3], env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (130, "interrupted: files already written are whole and stay\n")
