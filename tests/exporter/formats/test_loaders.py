"""What other loaders insist on: MatMul and Add instead of Gemm, a fixed batch, the precision by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from exporter.cli.parser import main
from exporter.errors import UserError
from exporter.formats.model_file import decode
from exporter.formats.session import Session
from exporter.library import export_model
from exporter.passes.profiles import prove_profile
from exporter.problem.spec import Spec
from exporter.problem.task import median
from exporter.specs import checked_all, file_name, question, requests
from exporter.tools.verify import verify

CONSTRUCTIONS = ("radix", "depth3", "batcher")


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_matmul_is_the_dense_chain_without_gemm(construction: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"bits": 10, "dtype": "float32", "construction": construction, "out": tmp_path}
    dense, matmul = (export_model(5, profile=profile, **options) for profile in ("dense", "matmul"))
    proto = onnx.load(matmul)
    assert prove_profile(proto).profile == "matmul"
    assert {n.op_type for n in proto.graph.node} == {"MatMul", "Add", "Relu"}
    stored = [[t.raw_data for t in onnx.load(path).graph.initializer] for path in (dense, matmul)]
    assert stored[0] == stored[1]
    assert verify(matmul, trials=10).kept


@pytest.mark.parametrize("profile", ["dense", "matmul", "structured", "fused"])
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_a_fixed_batch(construction: str, profile: str, tmp_path: Path) -> None:
    path = export_model(9, construction, tmp_path, bits=10, dtype="float32", profile=profile, batch=3)
    proto = onnx.load(path)
    assert [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim] == [3, 9]
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 3
    assert Session(path).batch == 3
    assert verify(path, trials=4).kept
    assert decode(proto)["batch"] == 3


def test_file_names_tell_the_choice() -> None:
    assert file_name(Spec(median(5), "batcher", profile="matmul", batch=1)) == "median-batcher-d5-matmul-batch1.onnx"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"quantile": [0.1234567]}, {"quantile": [0.12345678]}),
        ({"quantile": [k / 100 for k in range(100)]}, {"quantile": [0, *[k / 101 for k in range(2, 101)]]}),
        ({"rank": [1, 2, 3, 4, 5]}, {"rank": [1, 6, 7, 8, 9]}),
        ({"domain": (0, 1000000.5)}, {"domain": (0, 1000001)}),
        ({"construction": "compact", "failure": 0.001000001}, {"construction": "compact", "failure": 0.001000002}),
        ({"construction": "compact", "width": 12345678}, {"construction": "compact", "width": 12345679}),
    ],
)
def test_no_two_choices_share_a_name(one: dict[str, Any], other: dict[str, Any]) -> None:
    """So that an export never replaces another; and a name fits a file system."""
    names = set()
    for given in (dict(one), dict(other)):
        construction = given.pop("construction", "batcher")
        task = question(64, given)
        names |= {file_name(wanted) for wanted in requests(task, [construction], checked_all(given))}
    assert len(names) == 2
    assert max(map(len, names)) < 200


@pytest.mark.parametrize(("bits", "dtype"), [(16, "float32"), (40, "float64")])
def test_the_description_names_the_precision_it_needs(bits: int, dtype: str, tmp_path: Path) -> None:
    about = decode(onnx.load(export_model(9, "batcher", tmp_path, bits=bits)))
    assert about["needs_precision"] == dtype


def test_the_command_line_takes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--d", "3", "--construction", "batcher", "--profile", "matmul", "--batch", "1", "--out", str(tmp_path)]
    assert main([*args, "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["written"]
    assert entry["file"] == "median-batcher-d3-matmul-batch1.onnx"
    x = np.array([[0.5, 0.25, 1.0]], np.float32)
    assert Session(tmp_path / entry["file"]).run(x).tolist() == [[0.5]]


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(UserError, match="batch must be from 1 to 2147483647, not 0"):
        export_model(9, "radix", batch=0)


def _edited(path: Path, edit: str) -> onnx.ModelProto:
    proto = onnx.load(path)
    nodes = proto.graph.node
    if edit == "reads another node":
        nodes[2].input[0] = "x"
    elif edit == "moving bias":
        nodes[1].input[1] = nodes[0].output[0]
    elif edit == "ends in Relu":
        nodes.append(onnx.helper.make_node("Relu", ["y"], ["z"]))
        proto.graph.output[0].name = "z"
    else:
        nodes[2].op_type = "Sigmoid"
    return proto


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ("reads another node", "does not read the node before it"),
        ("moving bias", "must be stored tensors"),
        ("ends in Relu", "does not end in the Add"),
        ("another operator", "is Sigmoid"),
    ],
)
def test_a_chain_that_is_none_is_told(edit: str, reason: str, tmp_path: Path) -> None:
    path = export_model(3, "batcher", tmp_path, profile="matmul")
    assert reason in prove_profile(_edited(path, edit)).reasons["matmul"]
