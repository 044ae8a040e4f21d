"""Files made to be proved although they compute something else: none is, even without a search for counterexamples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter import export_model
from exporter.formats.session import Session
from exporter.prove import methods
from exporter.prove.methods import prove

NODE = helper.make_node


def _file(out: Path, **options: Any) -> Path:
    return export_model(**{"d": 5, "bits": 4, "construction": "batcher", "inputs": "grid", "out": out, **options})


def _stated(model: onnx.ModelProto, **fields: object) -> None:
    for prop in model.metadata_props:
        if prop.key in fields:
            value = fields[prop.key]
            prop.value = value if isinstance(value, str) else json.dumps(value)


def _followed(model: onnx.ModelProto, nodes: list[onnx.NodeProto], **stored: object) -> onnx.ModelProto:
    """The model with its output renamed `old`, and nodes that make a new one."""
    for node in model.graph.node:
        node.output[:] = ["old" if name == "y" else name for name in node.output]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in stored.items())
    return model


def _claims_all_numbers(model: onnx.ModelProto) -> onnx.ModelProto:
    """b + relu(a - b) is no maximum of 1 and 1e30 in floats."""
    _stated(model, inputs="floats")
    return model


def _two_medians(model: onnx.ModelProto) -> onnx.ModelProto:
    """2^-40 m + m, with m computed twice: in floats it is m, in real numbers it is not."""
    stored = {t.name for t in model.graph.initializer}
    again = [NODE("Gather", ["x", "turn"], ["x2"], axis=1)]
    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name += "2"
        copy.input[:] = [name if name in stored else f"{name}2" for name in node.input]
        copy.output[:] = [f"{name}2" for name in node.output]
        again.append(copy)
    again += [NODE("Mul", ["old", "tiny"], ["less"]), NODE("Add", ["y2", "less"], ["y"])]
    return _followed(model, again, turn=np.array([1, 2, 3, 4, 0]), tiny=np.float32(2.0**-40))


def _local_relu(model: onnx.ModelProto) -> onnx.ModelProto:
    """A function of the file takes the place of Relu."""
    body = [NODE("Identity", ["X"], ["Y"])]
    model.functions.append(helper.make_function("", "Relu", ["X"], ["Y"], body, [helper.make_opsetid("", 17)]))
    return model


def _sparse(model: onnx.ModelProto) -> onnx.ModelProto:
    values = [
        numpy_helper.from_array(np.array([n], t), name) for n, t, name in ((1, np.float32, "more"), (0, np.int64, "at"))
    ]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values[0], values[1], [1]))
    return _followed(model, [NODE("Add", ["old", "more"], ["y"])])


def _old_clip(model: onnx.ModelProto) -> onnx.ModelProto:
    """Before opset 11 the bounds of Clip are attributes."""
    model.opset_import[0].version = 6
    return _followed(model, [NODE("Clip", ["old"], ["y"], min=0.25, max=0.5)])


def _clipped(low: float, high: float) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    def changed(model: onnx.ModelProto) -> onnx.ModelProto:
        return _followed(
            model, [NODE("Clip", ["old", "low", "high"], ["y"])], low=np.float32(low), high=np.float32(high)
        )

    return changed


def _early_slice(model: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX moves a start before the first entry to it, numpy takes nothing."""
    nodes = [NODE("Slice", ["x", "from", "to", "axis", "step"], ["first"]),
             NODE("Concat", ["first", "old"], ["both"], axis=1),
             NODE("Gather", ["both", "zero"], ["y"], axis=1)]  # fmt: skip
    numbers = {"from": [-100], "to": [-101], "axis": [1], "step": [-1], "zero": [0]}
    return _followed(model, nodes, **{name: np.array(n) for name, n in numbers.items()})


def _shifted(by: float) -> Callable[[onnx.ModelProto], onnx.ModelProto]:
    def changed(model: onnx.ModelProto) -> onnx.ModelProto:
        return _followed(model, [NODE("Add", ["old", "by"], ["y"])], by=np.float32(by))

    return changed


def _other_rank(model: onnx.ModelProto) -> onnx.ModelProto:
    outputs = [{"name": "median", "ranks": [4], "weights": [1.0]}]
    _stated(model, ranks=[4], outputs=outputs)
    return model


def _thresholds(model: onnx.ModelProto) -> onnx.ModelProto:
    """y = step * #{t: x(3) > t}. One comparison is made on x 2^-35 + 2^25 [x(3) <= 3], where 2^25 is 2^64 units."""
    del model.graph.node[:], model.graph.initializer[:]
    nodes = [NODE("Mul", ["x", "steps"], ["s"])]
    stored: dict[str, Any] = {
        "zero": 0, "one": 1, "two": 2, "steps": 16, "down": 2.0**-35, "far": 2.0**25, "up": 2.0**39,
        "sum": np.full((16, 1), -1 / 16),
    }  # fmt: skip

    def decided(t: int, entries: str) -> None:
        stored[f"t{t}"] = t + 1
        nodes.extend([
            NODE("Sub", [f"t{t}", entries], [f"a{t}"]), NODE("Clip", [f"a{t}", "zero", "one"], [f"b{t}"]),
            NODE("ReduceSum", [f"b{t}", "axis"], [f"c{t}"], keepdims=1), NODE("Sub", [f"c{t}", "two"], [f"e{t}"]),
            NODE("Clip", [f"e{t}", "zero", "one"], [f"d{t}"]),
        ])  # fmt: skip

    for t in range(16):
        if t != 8:
            decided(t, "s")
    nodes += [NODE("Mul", ["x", "down"], ["low"]), NODE("Mul", ["d3", "far"], ["jump"]),
              NODE("Add", ["low", "jump"], ["moved"]), NODE("Mul", ["moved", "up"], ["s8"])]  # fmt: skip
    decided(8, "s8")
    nodes += [NODE("Concat", [f"d{t}" for t in range(16)], ["d"], axis=1), NODE("MatMul", ["d", "sum"], ["less"]),
              NODE("Add", ["less", "one"], ["y"])]  # fmt: skip
    numbers = {name: np.asarray(a, np.float32) for name, a in stored.items()}
    return _followed(model, nodes, axis=np.array([1]), **numbers)


def _constants_cut(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without axes a Slice cuts rows: 0 0 is added by its columns, 0 1 by its rows."""
    nodes = [NODE("Slice", ["table", "from", "to", "", "step"], ["row"]), NODE("Reshape", ["row", "shape"], ["pair"]),
             NODE("Add", ["old", "pair"], ["both"]), NODE("Gather", ["both", "last"], ["y"], axis=1)]  # fmt: skip
    numbers = {"from": [0], "to": [1], "step": [1], "shape": [1, 2], "last": [1]}
    table = np.array([[0, 1], [0, 1]], np.float32)
    return _followed(model, nodes, table=table, **{name: np.array(n) for name, n in numbers.items()})


def _constant_cast(model: onnx.ModelProto) -> onnx.ModelProto:
    """(1 + 2^-30) - 1 is 0 after a Cast to float32."""
    nodes = [NODE("Cast", ["wide"], ["one"], to=TensorProto.FLOAT), NODE("Mul", ["old", "one"], ["a"]),
             NODE("Sub", ["a", "old"], ["b"]), NODE("Mul", ["b", "big"], ["y"])]  # fmt: skip
    return _followed(model, nodes, wide=np.array(1 + 2.0**-30), big=np.float32(2.0**30))


def _constants_round(model: onnx.ModelProto) -> onnx.ModelProto:
    """(2^24 - (-1)) - 2^24 is 1 in real numbers, and 0 in float32."""
    nodes = [
        NODE("Sub", ["far", "less"], ["a"]),
        NODE("Sub", ["a", "far"], ["one"]),
        NODE("Mul", ["old", "one"], ["y"]),
    ]
    return _followed(model, nodes, far=np.float32(2.0**24), less=np.float32(-1))


def _tiny(model: onnx.ModelProto) -> onnx.ModelProto:
    """Runtimes may take weights below the smallest normal float for 0."""
    nodes = [NODE("Mul", ["old", "tiny"], ["a"]), NODE("Mul", ["a", "big"], ["b"]), NODE("Mul", ["b", "more"], ["y"])]
    return _followed(model, nodes, tiny=np.float32(2.0**-140), big=np.float32(2.0**100), more=np.float32(2.0**40))


def _replaceable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights that are inputs too have other values where a caller gives them."""
    name = next(t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT or t.dims)
    tensor = next(t for t in model.graph.initializer if t.name == name)
    model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    return model


ATTACKS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "claims-all-numbers": _claims_all_numbers, "two-medians": _two_medians, "local-relu": _local_relu, "sparse": _sparse,
    "old-clip": _old_clip, "clip-short": _clipped(0.0, 0.9375), "clip-late": _clipped(0.0625, 1.0),
    "clip-infinite": _clipped(-np.inf, 0.5), "clip-nan": _clipped(np.nan, 1.0), "early-slice": _early_slice,
    "shift": _shifted(2.0**-40), "nan": _shifted(np.nan), "infinite": _shifted(np.inf), "other-rank": _other_rank,
    "overflow": _thresholds, "constants-cut": _constants_cut, "constant-cast": _constant_cast, "tiny": _tiny,
    "constants-round": _constants_round,
    "replaceable": _replaceable,
}  # fmt: skip


WRONG_SOMEWHERE = {
    "overflow",
    "constants-round",
    "constants-cut",
    "constant-cast",
    "clip-late",
    "early-slice",
    "sparse",
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _file(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No method runs the file."""
    for name, value in {"FEW": 0, "MOST": 0, "search": lambda *_: None, "first_run": lambda *_: None}.items():
        monkeypatch.setattr(methods, name, value)


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_attack_is_proved(attack: str, plain: Path, tmp_path: Path, read_only: None) -> None:
    path = tmp_path / "changed.onnx"
    onnx.save(ATTACKS[attack](onnx.load(plain)), path)
    assert prove(path).status == "not proved"
    if attack in WRONG_SOMEWHERE:
        session = Session(path)
        x = np.random.default_rng(0).integers(0, 17, (500, 5)) / 16
        assert (session.run(x)[:, 0] != np.median(x, axis=1)).any()


def test_clips_at_the_ends_of_the_grid_are_proved(plain: Path, tmp_path: Path, read_only: None) -> None:
    path = tmp_path / "changed.onnx"
    onnx.save(_clipped(0.0, 1.0)(onnx.load(plain)), path)
    assert prove(path).status == "proved"


def test_a_proof_in_real_numbers_says_so_first(plain: Path, tmp_path: Path, read_only: None) -> None:
    """Nothing shows that a file with operators of another profile does not round."""
    model = onnx.load(plain)
    _stated(model, profile="minmax")
    onnx.save(model, tmp_path / "changed.onnx")
    verdict = prove(tmp_path / "changed.onnx")
    assert (verdict.status, verdict.arithmetic) == ("proved", "real numbers")
    assert verdict.lines()[0].endswith(", in real arithmetic")


def test_a_rank_that_is_listed_twice_is_added_up(plain: Path, tmp_path: Path) -> None:
    model = onnx.load(plain)
    _stated(model, outputs=[{"name": "median", "ranks": [3, 3], "weights": [0.5, 0.5]}])
    onnx.save(model, tmp_path / "changed.onnx")
    assert prove(tmp_path / "changed.onnx").text.startswith("y = x(3) of 5 numbers")


@pytest.mark.parametrize(("ranks", "weights"), [([3], [0.25]), ([2, 3], [0.5, 1.0])])
def test_weights_that_are_no_mean_are_not_proved(ranks: list[int], weights: list[float], tmp_path: Path) -> None:
    """Answers of one rank have no weight, and an interpolation takes the second one: the file gives x(3) in both cases."""
    model = onnx.load(_file(tmp_path, d=5, bits=1))
    _stated(model, ranks=ranks, outputs=[{"name": "median", "ranks": ranks, "weights": weights}])
    stated = model.metadata_props.add()
    stated.key, stated.value = "interpolation", "data"
    onnx.save(model, tmp_path / "changed.onnx")
    assert prove(tmp_path / "changed.onnx").status == "not proved"


def test_a_damaged_description_is_not_proved(plain: Path, tmp_path: Path) -> None:
    model = onnx.load(plain)
    _stated(model, outputs=[])
    onnx.save(model, tmp_path / "changed.onnx")
    verdict = prove(tmp_path / "changed.onnx")
    assert verdict.status == "not proved"
    assert "description in the file is damaged" in verdict.text


def test_a_grid_finer_than_floats_is_refused(tmp_path: Path, read_only: None) -> None:
    model = onnx.load(_file(tmp_path, dtype="float64", bits=2))
    _stated(model, domain=[2.0**53, 2.0**53 + 4], step=1.0)
    onnx.save(model, tmp_path / "changed.onnx")
    assert "that float64 does not hold" in prove(tmp_path / "changed.onnx").text


def test_parts_of_the_grid_agree_on_every_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: None
) -> None:
    """x(2) + step(x(2)) + x(4) - step(x(4)) is right where both entries lie in one part of the grid."""
    monkeypatch.setattr(methods, "PART", 33)
    path = _file(tmp_path, d=5, bits=6, construction="radix", rank=[2, 4], dtype="float64")
    model, stop, step = onnx.load(path), 65 // 2, 2.0**-6
    nodes, stored = [], {}
    for k, corner in enumerate((stop - 1, stop)):
        stored[f"corner{k}"] = np.array(corner * step)
        nodes += [NODE("Sub", ["old", f"corner{k}"], [f"away{k}"]), NODE("Relu", [f"away{k}"], [f"ramp{k}"])]
    nodes += [NODE("Sub", ["ramp0", "ramp1"], ["jump"]), NODE("MatMul", ["jump", "gap"], ["more"]),
              NODE("MatMul", ["old", "sum"], ["mean"]), NODE("Add", ["mean", "more"], ["y"])]  # fmt: skip
    _followed(model, nodes, sum=np.array([[0.5], [0.5]]), gap=np.array([[1.0], [-1.0]]), **stored)
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1
    _stated(model, op="rank", outputs=[{"name": "mean", "ranks": [2, 4], "weights": [0.5, 0.5]}])
    onnx.save(model, path)
    verdict = prove(path)
    assert verdict.status == "not proved"
    assert "ends elsewhere" in verdict.text


def test_a_stated_error_is_not_believed(tmp_path: Path) -> None:
    """A mixture of ranks may round: by as much as its floats do, whatever the file says."""
    model = onnx.load(_file(tmp_path, d=3, bits=3, quantile=[0.3]))
    _stated(model, grid_error=10.0)
    path = tmp_path / "changed.onnx"
    onnx.save(_followed(model, [NODE("Mul", ["old", "none"], ["y"])], none=np.float32(0)), path)
    assert prove(path).status == "refuted"


def test_weights_in_another_file_are_not_read(plain: Path, tmp_path: Path, read_only: None) -> None:
    path = tmp_path / "changed.onnx"
    onnx.save(onnx.load(plain), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert any(
        t.data_location == TensorProto.EXTERNAL for t in onnx.load(path, load_external_data=False).graph.initializer
    )
    assert prove(path).status == "not proved"


@pytest.mark.parametrize("construction", ["batcher", "radix"])
def test_vectors_that_depend_on_their_place_in_the_batch_are_not_proved(construction: str, tmp_path: Path) -> None:
    """From the sixth vector on, the answer is that of the vector before."""
    model = onnx.load(_file(tmp_path, construction=construction, d=9, bits=8))
    numbers = {"zero": [0], "five": [5], "minus": [-1], "last": [2**31], "axis": [0]}
    nodes = [NODE("Slice", ["old", "zero", "five", "axis"], ["head"]),
             NODE("Slice", ["old", "five", "last", "axis"], ["tail"]),
             NODE("Slice", ["tail", "minus", "last", "axis"], ["end"]),
             NODE("Slice", ["tail", "zero", "minus", "axis"], ["rest"]),
             NODE("Concat", ["head", "end", "rest"], ["y"], axis=0)]  # fmt: skip
    path = tmp_path / "changed.onnx"
    onnx.save(_followed(model, nodes, **{name: np.array(n) for name, n in numbers.items()}), path)
    verdict = prove(path)
    assert (verdict.status, verdict.text) == ("not proved", "a vector in a large batch has another answer than alone")


@pytest.mark.parametrize("turned", [0, 1])
def test_a_turned_matrix_moves_outputs_the_other_way(turned: int, tmp_path: Path, read_only: None) -> None:
    """A cycle of three outputs and the same cycle turned: the claim fits one of them."""
    model = onnx.load(_file(tmp_path, rank=[1, 3, 5]))
    cycle = np.roll(np.eye(3, dtype=np.float32), 1, axis=0)  # old @ cycle lists ranks 3, 5, 1
    _followed(model, [NODE("Gemm", ["old", "cycle"], ["y"], transB=turned)], cycle=cycle)
    _stated(model, outputs=[{"name": f"rank {r}", "ranks": [r], "weights": [1.0]} for r in (3, 5, 1)])
    onnx.save(model, tmp_path / "changed.onnx")
    assert prove(tmp_path / "changed.onnx").status == ("not proved" if turned else "proved")


def test_an_entry_that_is_compared_twice_with_one_other_is_not_proved(tmp_path: Path, read_only: None) -> None:
    """The comparisons of entries 0 and 2 become comparisons of 0 and 1: as many comparisons as before, one other fewer."""
    path = _file(tmp_path, construction="depth3", profile="dense", dtype="float32")
    assert prove(path).status == "proved"
    model = onnx.load(path)
    tensor = next(t for t in model.graph.initializer if t.name == model.graph.node[0].input[1])
    weights = numpy_helper.to_array(tensor).copy()
    pair = (weights[0] != 0) & (weights[2] != 0)
    assert pair.any()
    weights[1, pair], weights[2, pair] = weights[2, pair], 0
    tensor.CopyFrom(numpy_helper.from_array(weights, tensor.name))
    onnx.save(model, path)
    verdict = prove(path)
    assert verdict.status == "not proved"
    assert "is compared with 3 of 4 others" in verdict.text or "not compared exactly" in verdict.text
