"""Models that were made to be rewritten wrongly, and what is said of each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter.cli.parser import main
from exporter.errors import UserError
from exporter.formats.quantisation import EXCLUDE, nodes_to_exclude
from exporter.frontends.rewriting.rewrite import rewrite
from tests.exporter.frontends.rewriting.patterns import model, saved, values_only
from tests.exporter.passes.quantised import run
from tests.running import parsed

T = TensorProto


def rich(opset: int = 17) -> onnx.ModelProto:
    """All that must stay: documentation, names and none, versions, an unused constant, bodies that read what is replaced."""
    nodes = [
        helper.make_node("Mul", ["x0", "two"], ["x"], name="scale", doc_string="kept"),
        helper.make_node("TopK", ["x", "k"], ["v", "i"], name="node", axis=1),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Add", ["v", "one"], ["w"], name="node_sorted_max_1"),
        helper.make_node(
            "If", ["c"], ["y"], name="if",
            then_branch=helper.make_graph(
                [helper.make_node("Identity", ["v"], ["a"])], "t", [], [helper.make_tensor_value_info("a", 1, None)]),
            else_branch=helper.make_graph(
                [helper.make_node("Relu", ["v"], ["b"])], "e", [], [helper.make_tensor_value_info("b", 1, None)]),
        ),
    ]  # fmt: skip
    ones = np.ones(3, np.float32)
    constants = {"k": np.array([3]), "two": np.array(2, np.float32)}
    constants |= {"one": ones, "unused": ones, "node_sorted_c_0": ones}
    outputs = {"w": T.FLOAT, "y": T.FLOAT, "i": T.INT64, "r": T.FLOAT}
    proto = helper.make_model(
        helper.make_graph(
            nodes, "graph",
            [helper.make_tensor_value_info("x0", 1, ["n", 9]), helper.make_tensor_value_info("c", T.BOOL, [])],
            [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
            [numpy_helper.from_array(value, name) for name, value in constants.items()], doc_string="of the graph",
        ),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("other", 2)], ir_version=8, domain="here",
        producer_name="someone", producer_version="7", doc_string="of the model", model_version=5,
    )  # fmt: skip
    helper.set_model_props(proto, {"author": "someone"})
    return proto


def stored(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


@pytest.mark.parametrize("opset", [17, 12, 9])
def test_everything_else_of_a_rich_model_stays(opset: int, tmp_path: Path) -> None:
    before = rich(opset)
    if opset < 10:  # k was an attribute
        before.graph.node[1].attribute.append(helper.make_attribute("k", 3))
        before.graph.node[1].input.pop()
        del before.graph.initializer[0]
    found = rewrite(saved(before, tmp_path), tmp_path / "new.onnx")
    assert found.ok, found.lines()
    after = onnx.load(tmp_path / "new.onnx")
    for name in ("producer_name", "producer_version", "doc_string", "domain", "model_version", "ir_version"):
        assert getattr(after, name) == getattr(before, name), name
    assert [(o.domain, o.version) for o in after.opset_import] == [("", max(opset, 13)), ("other", 2)]
    assert (after.graph.name, after.graph.doc_string) == ("graph", "of the graph")
    kept = {t.name: stored(t) for t in after.graph.initializer}
    assert all(kept[t.name] == stored(t) for t in before.graph.initializer if t.name != "k")
    old = [n for n in before.graph.node if n.op_type != "TopK"]
    names = nodes_to_exclude(after)
    rest = [n for n in after.graph.node if n.name not in names]
    if opset == 17:  # onnx's converter writes the shapes that it infers, also in bodies
        assert [stored(n) for n in rest] == [stored(n) for n in old]
        assert [stored(v) for v in after.graph.output] == [stored(v) for v in before.graph.output]
    assert [(n.name, n.op_type, n.input, n.output) for n in rest] == [
        (n.name, n.op_type, n.input, n.output) for n in old
    ]
    assert len({n.name for n in after.graph.node}) == len(after.graph.node)
    props = {p.key: p.value for p in after.metadata_props}
    assert props.pop("author") == "someone"
    assert list(props) == [EXCLUDE]


def test_the_list_for_quantisers_grows_when_a_model_is_rewritten_again(tmp_path: Path) -> None:
    proto = model("TopK", ["n", 9], k=3)
    proto.graph.node.append(helper.make_node("ReduceMax", ["x"], ["m"], name="max", axes=[1]))
    proto.graph.output.append(helper.make_tensor_value_info("m", 1, None))
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    rewrite(saved(proto, tmp_path), first, only=["TopK"])
    rewrite(first, second, only=["ReduceMax"])
    assert set(nodes_to_exclude(first)) < set(nodes_to_exclude(second))
    assert set(nodes_to_exclude(second)) == {n.name for n in onnx.load(second).graph.node}
    with pytest.raises(UserError, match="no list of our nodes"):
        nodes_to_exclude(proto)
    helper.set_model_props(proto, {EXCLUDE: "{"})
    with pytest.raises(UserError, match="is not a list of names: remove it"):
        rewrite(saved(proto, tmp_path))


@pytest.mark.parametrize("profile", ["minmax", "structured"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "int64", "float16"])
def test_every_number_of_a_small_type(kind: str, profile: str, tmp_path: Path) -> None:
    """Their ends and ties, against numpy: onnxruntime itself has no TopK of some of these types."""
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    rng = np.random.default_rng(0)
    if kind == "float16":
        x: Any = (rng.normal(size=(500, 9)) * 100).astype(np.float16)
        x[:100] = np.array([0, 1, -1, 2**-24, 2**-14, -65504, 65504, 0.5, 0.5], np.float16)
        if profile == "structured":
            x = np.round(np.clip(x, -100, 100))
    else:
        ends = np.iinfo(kind)
        lo, hi = (ends.min, ends.max) if profile == "minmax" or ends.bits < 32 else (-(2**23), 2**23 - 1)
        x = rng.integers(lo, hi, (500, 9), dtype=kind, endpoint=True)
        x[:100] = np.array([lo, hi, hi, lo, 0, 1, 0, hi - 1, lo + 1])
    x = rng.permuted(x, axis=1)
    more: dict[str, Any] = {}
    if profile == "structured":
        more = {"profile": profile}
        if kind in ("int32", "int64"):
            more["domain"] = (-(2**23), 2**23 - 1)
        elif kind == "float16":
            more["domain"] = (-128, 127)
    for largest in (0, 1):
        before = model("TopK", ["n", 9], dtype, k=9, largest=largest)
        found = rewrite(saved(values_only(before) if more else before, tmp_path), check=False, **more)
        v, *i = run(found.model, x)
        wide = x.astype(object) if kind == "int64" else x.astype(np.float64)
        order = np.argsort(-wide if largest else wide, axis=1, kind="stable")
        assert v.dtype == np.dtype(kind)
        assert np.array_equal(v, np.take_along_axis(x, order, axis=1))
        assert more or np.array_equal(i[0], order)


def overridable(folder: Path) -> Path:
    proto = model("TopK", ["n", 9], k=3)
    proto.graph.input.append(helper.make_tensor_value_info("k", T.INT64, [1]))
    return saved(proto, folder)


def idle(folder: Path) -> Path:
    return saved(
        parsed("(float[5] x) => (float[5] v) { [node] v = ReduceMax<noop_with_empty_axes = 1>(x) }", 18), folder
    )


def in_a_function(folder: Path) -> Path:
    k = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.array([2])))
    top = helper.make_node("TopK", ["x", "k"], ["v", "i"], name="node")
    proto = model("Relu", ["n", 9])
    proto.functions.append(helper.make_function("my", "Top", ["x"], ["v"], [k, top], [helper.make_opsetid("", 17)]))
    proto.opset_import.append(helper.make_opsetid("my", 1))
    proto.graph.node.append(helper.make_node("Top", ["v"], ["t"], domain="my"))
    proto.graph.output.append(helper.make_tensor_value_info("t", 1, None))
    return saved(proto, folder)


def in_an_if(folder: Path) -> Path:
    return saved(
        parsed("""(bool c, float[n, 5] x) => (float[n, m] y) {
            y = If(c) <
                then_branch = t () => (float[n, 1] a) { a = ReduceMax<axes: ints = [1]>(x) },
                else_branch = e () => (float[n, 5] b) { b = Identity(x) }
            >
        }"""),
        folder,
    )


def in_a_loop(folder: Path) -> Path:
    return saved(
        parsed("""(float[n, 9] x) => (float[r, n, 1] t) <int64 times = {2}> {
            t = Loop(times, ) <
                body = b (int64 i, bool c) => (bool more, float[n, 1] m) {
                    more = Identity(c)
                    [node] m = ReduceMax<axes: ints = [1]>(x)
                }
            >
        }"""),
        folder,
    )


def wide(kind: int) -> Callable[[Path], Path]:
    return lambda folder: saved(values_only(model("TopK", ["n", 9], kind, k=3)), folder)


def counts(*ks: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        proto = model("TopK", ["n", 9], k=3)
        proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(ks, dtype=np.int64), "k"))
        return saved(proto, folder)

    return make


def picked(folder: Path) -> Path:
    """The entries above a threshold, as in torchvision's SSD and RetinaNet."""
    proto = parsed("""(float[9] x) => (float[n] v, int64[n] i) <int64[1] three = {3}, float zero = {0}> {
        above = Greater(x, zero)
        some = Compress<axis=0>(x, above)
        n = Shape(some)
        k = Min(n, three)
        [node] v, i = TopK(some, k)
    }""")
    return saved(proto, folder)


def one_number(folder: Path) -> Path:
    return saved(parsed("(float x) => (float v) { [node] v = ReduceMax(x) }"), folder)


@pytest.mark.parametrize(
    ("make", "more", "reason", "remedy"),
    [
        (counts(), {}, "k holds 0 numbers", "mend the model"),
        (counts(3, 4), {}, "k holds 2 numbers", "mend the model"),
        (counts(10), {}, "k = 10 of 9 entries", "mend the model"),
        (one_number, {}, "is one number", "a runtime drops it"),
        (picked, {}, "the length of axis -1 depends on the data", "set others to minus infinity"),
        (overridable, {}, "k is an input of the model", "an initializer that is not among the inputs"),
        (idle, {}, "does nothing", "a runtime drops it"),
        (in_a_function, {}, "inside the function Top", "inline_local_functions"),
        (in_an_if, {}, "inside the body of an If, Loop or Scan", "without control flow"),
        (in_a_loop, {}, "inside the body of an If, Loop or Scan", "without control flow"),
        (wide(T.UINT32), {}, "of type uint32", "cast it"),
        (wide(T.INT32), {"domain": (-(2**30), 2**30)}, "would be rounded to steps of", "--profile minmax"),
        (wide(T.INT64), {"profile": "structured"}, "the range of its int64 data is unknown", "give --domain"),
    ],
)  # fmt: skip
def test_what_is_left_is_named(
    make: Callable[[Path], Path], more: dict[str, Any], reason: str, remedy: str, tmp_path: Path
) -> None:
    found = rewrite(make(tmp_path), tmp_path / "new.onnx", also=["ReduceMax"], **more)
    assert [each.node for each in found.left] in (["node"], ["a"])
    assert reason in found.left[0].reason
    assert remedy in found.left[0].remedy
    assert found.status == 1
    assert not (tmp_path / "new.onnx").exists()
    assert any("nothing is written" in line for line in found.lines())


def strings() -> onnx.ModelProto:
    proto = model("TopK", ["n", 9], k=3)
    proto.graph.input.append(helper.make_tensor_value_info("s", T.STRING, ["n"]))
    proto.graph.node.append(helper.make_node("Identity", ["s"], ["t"]))
    proto.graph.output.append(helper.make_tensor_value_info("t", T.STRING, ["n"]))
    return proto


@pytest.mark.parametrize(
    ("proto", "told"),
    [
        (strings(), "takes none of the inputs that were drawn; give --calibrate"),
        (model("TopK", ["n", 9], T.UINT16, k=3), "onnxruntime does not run it: .* compare both models"),
    ],
    ids=["strings", "uint16"],
)
def test_that_nothing_was_checked_is_a_status_of_its_own(
    proto: onnx.ModelProto, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    path, new = saved(proto, tmp_path), tmp_path / "new.onnx"
    assert main(["rewrite", str(path), "--out", str(new)]) == 3
    said = capsys.readouterr().out
    assert re.search(f"NOTHING WAS CHECKED: .*{told}", said)
    assert str(tmp_path) not in said.partition("CHECKED")[2]
    assert new.exists()
    assert not rewrite(path).ok
    assert main(["rewrite", str(path), "--out", str(new), "--no-check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checked"] == 0
    assert main(["rewrite", str(path), "--out", str(new), "--no-check"]) == 0
    assert "not checked, as asked" in capsys.readouterr().out


def test_calibration_makes_a_check_possible(tmp_path: Path) -> None:
    """Token numbers that index a table of 4: hardly any that is drawn will do."""
    table = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    text = """(int64[n] token) => (float[n, 3] v, int64[n, 3] i) <int64[1] k = {3}, int64 thousand = {-1000}> {
        less = Add(token, thousand)
        x = Gather(table, less)
        v, i = TopK(x, k)
    }"""
    proto = parsed(text, table=table)
    path = saved(proto, tmp_path)
    assert rewrite(path).status == 3
    np.savez(tmp_path / "tokens.npz", token=1000 + np.arange(4))
    found = rewrite(path, calibrate=tmp_path / "tokens.npz")
    assert found.ok, found.lines()
    assert found.checked == 7


def test_random_inputs_stay_in_a_domain_that_is_given_and_leaving_it_inside_is_told(tmp_path: Path) -> None:
    plain = rewrite(saved(values_only(model("TopK", ["n", 9], k=3)), tmp_path), domain=(0, 1))
    assert plain.ok, plain.lines()
    proto = values_only(model("TopK", ["n", 9], k=3))
    proto.graph.node.insert(0, helper.make_node("Mul", ["x0", "two"], ["x"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(2, np.float32), "two"))
    proto.graph.input[0].name = "x0"
    found = rewrite(saved(proto, tmp_path), domain=(0, 1))
    assert found.status == 1
    assert "outside [0, 1], and is clamped there" in "\n".join(found.lines())
    small = rewrite(saved(values_only(model("TopK", ["n", 9], T.INT8, k=3)), tmp_path), domain=(0, 100))
    assert small.ok, small.lines()
    assert small.replaced[0].domain == (0, 100)


def with_data_at(place: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        proto = rich()
        tensor = proto.graph.initializer[2]
        (folder / "m.data").write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)
        return saved(proto, folder)

    return make


def empty(folder: Path) -> Path:
    np.savez(folder / "empty.npz", x=np.zeros((0, 9), dtype=np.float32))
    return saved(model("TopK", ["n", 9], k=3), folder)


def shaped(folder: Path) -> Path:
    np.savez(folder / "wide.npz", x=np.zeros((2, 8), dtype=np.float32))
    np.savez(folder / "flat.npz", x=np.zeros(9, dtype=np.float32))
    return saved(model("TopK", ["n", 9], k=3), folder)


def piped(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return saved(model("TopK", ["n", 9], k=3), folder)


def nonsense(folder: Path) -> Path:
    (folder / "model.onnx").write_bytes(b"\x00nonsense" * 10)
    return folder / "model.onnx"


def without(folder: Path) -> Path:
    return saved(parsed("(float[3] x) => (float[3] y) { y = Relu(x) }"), folder)


def old(folder: Path) -> Path:
    """A model of an opset below 13 with a node that onnx cannot convert."""
    return saved(parsed("(float[9] x) => (float[3] v) { w = Unknown(x) v, i = TopK<k=3>(w) }", 9), folder)


def huge(folder: Path) -> Path:
    with (folder / "model.onnx").open("wb") as file:
        file.truncate(2**31 + 1)  # a hole: no blocks on the disk
    return folder / "model.onnx"


def good(folder: Path) -> Path:
    np.savez(folder / "names.npz", z=np.zeros((1, 9), dtype=np.float32))
    np.savez(folder / "types.npz", x=np.zeros((1, 9)))
    (folder / "text.npz").write_text("no")
    (folder / "folder").mkdir()
    return saved(model("TopK", ["n", 9], k=3), folder)


@pytest.mark.parametrize(
    ("make", "more", "told"),
    [
        (nonsense, [], "is not a valid ONNX file"),
        (without, [], "has no TopK: there is nothing to replace"),
        (old, [], "the model is of opset 9, the new nodes need 13, and it cannot be raised"),
        (huge, [], "onnx.save(model, path, save_as_external_data=True)"),
        (good, ["--calibrate", "names.npz"], "names.npz: onnxruntime does not run it: Required inputs"),
        (good, ["--calibrate", "types.npz"], "types.npz: onnxruntime does not run it"),
        (good, ["--calibrate", "text.npz"], "is not an .npz file of arrays"),
        (good, ["--calibrate", "none.npz"], "none.npz: no such file"),
        (good, ["--out", "folder"], "is a directory: name a file in it"),
        (good, ["--out", "model.onnx/new.onnx"], "it is a file, not a directory"),
        (good, ["--domain", "2", "1"], "two finite numbers LO < HI"),
        (good, ["--domain", "0", "1", "--profile", "minmax"], "--domain changes nothing"),
        (good, ["--profile", "minmux"], "did you mean 'minmax'"),
        (good, ["--bits", "8"], "--bits changes nothing"),
        (shaped, ["--calibrate", "wide.npz"], "wide.npz: onnxruntime does not run it"),
        (shaped, ["--calibrate", "flat.npz"], "flat.npz: onnxruntime does not run it"),
        (piped, ["--out", "pipe"], "pipe exists and is not a regular file"),
        (with_data_at("../m.data"), [], "is not in the model's own folder"),
        (with_data_at("/m.data"), [], "is not in the model's own folder"),
        (with_data_at("none.data"), [], "its data file none.data is not beside it"),
        (with_data_at("m.data"), ["--out", "m.data"], "is the name of the model's data file"),
        (with_data_at("m.data"), ["--out", "taken/new.onnx"], "is there already and is not the model's data"),
        (empty, ["--calibrate", "empty.npz"], "x is empty, so nothing can be measured"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    make: Callable[[Path], Path], more: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    path = make(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "m.data").write_bytes(b"twelve bytes")  # as long as the model's
    there = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    assert main(["rewrite", path.name, *([] if "--out" in more else ["--out", "new.onnx"]), *more]) == 2
    assert told in capsys.readouterr().err
    assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == there
    assert make is not piped or (tmp_path / "pipe").is_fifo()


def test_what_is_sparse_stays(tmp_path: Path) -> None:
    proto = model("TopK", ["n", 9], k=3)
    values, places = helper.make_tensor("s", 1, [1], [3.0]), helper.make_tensor("p", 7, [1], [2])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [9]))
    assert rewrite(saved(proto, tmp_path)).model.graph.sparse_initializer == proto.graph.sparse_initializer


def test_data_inside_a_body_is_external_too(tmp_path: Path) -> None:
    proto = rich()
    body = proto.graph.node[4].attribute[1].g
    tensor = numpy_helper.from_array(np.arange(3, dtype=np.float32), "inside")
    body.initializer.append(tensor)
    body.node[0].CopyFrom(helper.make_node("Add", ["v", "inside"], [body.output[0].name]))
    source = tmp_path / "in"
    source.mkdir()
    (source / "m.data").write_bytes(tensor.raw_data)
    inside = body.initializer[0]
    inside.ClearField("raw_data")
    inside.data_location = TensorProto.EXTERNAL
    inside.external_data.add(key="location", value="m.data")
    # onnxruntime takes no such model, so that there is nothing to compare with
    assert rewrite(saved(proto, source), tmp_path / "out" / "new.onnx").status == 3
    assert sorted(os.listdir(tmp_path / "out")) == ["m.data", "new.onnx"]
    found = onnx.load(tmp_path / "out" / "new.onnx").graph.node[-1].attribute[1].g.initializer[0]
    assert found.raw_data == tensor.raw_data


def test_nan_is_nan_in_values(tmp_path: Path) -> None:
    """As docs/rewrite.md says: in a vector with NaN every value may be NaN, and no other is made up."""
    x = np.random.default_rng(0).integers(0, 9, (200, 7)).astype(np.float32)
    x[np.arange(100), np.random.default_rng(1).integers(0, 7, 100)] = np.nan
    proto = model("TopK", ["n", 7], k=7)
    v, _ = run(rewrite(saved(proto, tmp_path)).model, x)
    assert np.isnan(v[:100]).any(axis=1).all()
    assert np.array_equal(v[100:], -np.sort(-x[100:], axis=1))
    (top,) = run(rewrite(saved(model("ReduceMax", ["n", 7], axes=[1]), tmp_path), also=["ReduceMax"]).model, x)
    assert np.array_equal(top[:, 0], np.max(x, axis=1), equal_nan=True)
