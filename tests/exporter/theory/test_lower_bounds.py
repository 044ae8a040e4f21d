from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction as F
from math import comb
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter.build import build
from exporter.cli.parser import main
from exporter.errors import UserError
from exporter.formats.gemm_chain import chain_of, layer_widths
from exporter.formats.model_file import decode, encode, load
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import Output, Task, extremum, median, quantile, rank
from exporter.theory import lower_bounds as lb
from exporter.theory.audit import audit, audit_lines
from exporter.theory.reduce import error_bound, reduce_file, to_max
from exporter.tools.describe import describe, describe_lines
from exporter.tools.verify import verify
from tests import running
from tests.running import parsed


def run(path: Path, x: np.ndarray) -> np.ndarray:
    return running.run(load(path), x)


def exported(out: Path, *args: str) -> Path:
    assert main([*args, "--out", str(out)]) == 0
    (path,) = out.glob("*.onnx")
    return path


def chain(path: Path, *arrays: np.ndarray, matmul: bool = False) -> Path:
    """Weights and biases in turn as a Gemm/Relu chain."""
    nodes, at = [], "x"
    stored: dict[str, np.ndarray] = {}
    for i, (weight, bias) in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
        stored |= {f"w{i}": weight, f"b{i}": bias}
        if matmul:
            nodes += [
                helper.make_node("MatMul", [at, f"w{i}"], [f"m{i}"]),
                helper.make_node("Add", [f"m{i}", f"b{i}"], [f"z{i}"]),
            ]
        else:
            nodes.append(helper.make_node("Gemm", [at, f"w{i}", f"b{i}"], [f"z{i}"]))
        nodes.append(helper.make_node("Relu", [f"z{i}"], [f"h{i}"]))
        at = f"h{i}"
    nodes.pop()
    nodes[-1].output[0] = "y"
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", arrays[0].shape[0]])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", arrays[-2].shape[1]])
    kept = [numpy_helper.from_array(v.astype(np.float64), k) for k, v in stored.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def described(path: Path, task: Task, grid: Grid) -> None:
    """Give a file the description of one of ours."""
    proto = load(path)
    helper.set_model_props(proto, encode(build(Spec(task, "batcher", dtype="float64").on(grid)).description()))
    onnx.save(proto, path)


def narrow(path: Path, kernel: np.ndarray, matmul: bool = False) -> Path:
    """A network of random weights whose first ones have exactly one direction that they map to 0."""
    d = len(kernel)
    basis = np.linalg.svd(kernel[None] / np.linalg.norm(kernel), full_matrices=True)[2][1:]
    rng = np.random.default_rng(0)
    mixed = basis.T @ rng.normal(size=(d - 1, d - 1))
    return chain(path, mixed, rng.normal(size=d - 1), rng.normal(size=(d - 1, 1)), np.zeros(1), matmul=matmul)


KERNELS: dict[str, Callable[[int], np.ndarray]] = {
    "one": lambda d: np.eye(d)[0],
    "two of opposite signs": lambda d: np.r_[1.0, -1.0, np.zeros(d - 2)],
    "alike": np.ones,
    "one against all": lambda d: np.r_[1.0, -np.ones(d - 1)],
    "a third against": lambda d: np.r_[1.0, -np.ones(d - 1) / 3],
    "alternating": lambda d: (-1.0) ** np.arange(d),
    "random": lambda d: np.random.default_rng(d).normal(size=d),
}


@pytest.mark.parametrize("matmul", [False, True])
@pytest.mark.parametrize("op", ["median", "max", "min", "rank"])
@pytest.mark.parametrize("d", [2, 3, 4, 9, 16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_narrow_first_layer_has_a_witness(tmp_path: Path, kernel: str, d: int, op: str, matmul: bool) -> None:
    path = narrow(tmp_path / "narrow.onnx", KERNELS[kernel](d), matmul)
    found = audit(path, None, 2) if op == "rank" else audit(path, op)
    if d == 2 and op == "median":
        return  # the mean of two is linear: one neuron can do it
    assert not found["can_be_exact"]
    x = np.array(found["witness"]["inputs"])
    assert x.shape == (2, d)
    assert x.min() >= 0
    assert x.max() <= 1
    outputs = run(path, x)[:, 0]
    ranks: dict[str, Callable[..., np.ndarray]] = {
        "max": np.max,
        "min": np.min,
        "median": np.median,
        "rank": lambda x, axis: np.sort(x, axis)[:, 1],
    }
    answers = ranks[op](x, axis=1)
    assert abs(outputs[0] - outputs[1]) < 1e-9
    assert abs(answers[0] - answers[1]) > 0.029
    assert np.abs(outputs - answers).max() >= found["witness"]["error_at_least"] > 0.01
    assert "A witness" in "\n".join(audit_lines(found))
    (bound,) = (b for b in found["bounds"] if b["holds"] and b["label"] == "Theorem 4.9")
    assert bound["mean_squared_error_at_least"] > 0


def least_error(v: np.ndarray, out: Output, vectors: int = 300, points: int = 200) -> float:
    """The error of the best function that is constant along v: the variance of the answer on lines through the cube."""
    x = np.random.default_rng(1).random((vectors, len(v)))
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.sort(np.stack([-x / v, (1 - x) / v]), axis=0)
    low, high = np.where(v == 0, -np.inf, ends[0]).max(axis=1), np.where(v == 0, np.inf, ends[1]).min(axis=1)
    t = low[:, None] + (high - low)[:, None] * (np.arange(points) + 0.5) / points
    p = np.sort(x[:, None] + t[:, :, None] * v, axis=2)
    f = sum(float(w) * p[:, :, r - 1] for r, w in zip(out.ranks, out.weights, strict=True))
    return float(np.asarray(f).var(axis=1).mean())


@pytest.mark.parametrize("d", [2, 3, 4, 5, 8])
def test_no_kernel_allows_less_error_than_is_stated(d: int) -> None:
    """Mixed signs among them, on which the paper's own parallelepipeds fail."""
    outputs = [median(d).outputs[0], *(rank(d, [k]).outputs[0] for k in range(1, d + 1))]
    for out, (name, kernel) in itertools.product(outputs, KERNELS.items()):
        stated = lb.narrow_error(out, d)
        if d == 2 and len(out.ranks) == 2:
            assert stated is None
        else:
            assert stated is not None
            assert 0 < stated <= least_error(kernel(d), out), (name, out)


def test_the_mean_of_two_needs_one_neuron(tmp_path: Path) -> None:
    path = chain(tmp_path / "mean.onnx", np.full((2, 1), 0.5), np.zeros(1), np.ones((1, 1)), np.zeros(1))
    found = audit(path, "median")
    assert found["can_be_exact"]
    assert found["witness"] is None
    assert not audit(path, "max")["can_be_exact"]


def test_a_wide_first_layer_of_low_rank_has_a_witness(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    flat = rng.integers(-3, 4, (6, 5)) @ rng.integers(-3, 4, (5, 20))
    path = chain(tmp_path / "flat.onnx", flat, rng.normal(size=20), rng.normal(size=(20, 1)), np.zeros(1))
    found = audit(path, "max")
    assert not found["can_be_exact"]
    assert found["witness"]["error_at_least"] > 0.01


def test_weights_of_very_different_size_are_no_kernel(tmp_path: Path) -> None:
    """x1 seen with weight 1 beside comparisons of slope 2^45: full rank, which a tolerance would deny."""
    weight = np.c_[2.0**45 * np.array([[1.0, 1.0], [-1.0, -1.0]]), np.array([[1.0], [0.0]])]
    path = chain(tmp_path / "steep.onnx", weight, np.zeros(3), np.ones((3, 1)), np.zeros(1))
    assert audit(path, "max")["witness"] is None


OURS = [("radix", "--bits", "4"), ("radix", "--bits", "1"), ("depth3", "--bits", "6"), ("batcher",), ("tree-max",)]


@pytest.mark.parametrize("construction", OURS, ids=" ".join)
def test_nothing_exact_that_we_build_is_called_impossible(tmp_path: Path, construction: tuple[str, ...]) -> None:
    name, *options = construction
    for d in range(1, 9):
        asked = [["--op", "max"]]
        if name != "tree-max":
            asked += [["--op", "min"], ["--op", "median"], *(["--rank", str(k)] for k in range(2, d))]
        for i, what in enumerate(asked):
            out = tmp_path / f"{d}-{i}"
            path = exported(out, "--d", str(d), *what, "--construction", name, *options, "--profile", "dense")
            found = audit(path)
            assert found["can_be_exact"], audit_lines(found)
            assert "So nothing in the paper rules it out." in "\n".join(audit_lines(found))
            assert found["exact_on_reals"] or name == "radix", audit_lines(found)  # radix is exact on its grid only


def test_what_is_exact_on_a_grid_may_be_ruled_out_on_reals(tmp_path: Path) -> None:
    """On one bit the median is a threshold of the sum: few neurons, exact there, and not on all reals."""
    weight, bias = np.ones((5, 2)), np.array([-2.0, -3.0])
    path = chain(tmp_path / "vote.onnx", weight, bias, np.array([[1.0], [-1.0]]), np.zeros(1))
    x = np.array(list(itertools.product([0.0, 1.0], repeat=5)))
    assert np.array_equal(run(path, x)[:, 0], np.median(x, axis=1))
    found = audit(path)
    assert not found["exact_on_reals"]
    assert not found["can_be_exact"]  # it promises no grid
    described(path, median(5), Grid(bits=1))
    found = audit(path)
    assert not found["exact_on_reals"]
    assert found["can_be_exact"]
    assert "Its promise is untouched" in "\n".join(audit_lines(found))


def test_the_witness_lies_in_the_domain_of_the_file(tmp_path: Path) -> None:
    path = narrow(tmp_path / "narrow.onnx", np.r_[1.0, -1.0, 0.0, 0.0])
    described(path, extremum(4, "max"), Grid(-30, -10, 5))
    x = np.array(audit(path)["witness"]["inputs"])
    assert x.min() >= -30
    assert x.max() <= -10


@pytest.mark.parametrize(
    ("out", "d", "depth"),
    [
        (median(1).outputs[0], 1, 1), (median(2).outputs[0], 2, 1), (extremum(2, "max").outputs[0], 2, 2),
        (extremum(3, "max").outputs[0], 3, 3), (median(3).outputs[0], 3, 3), (median(4).outputs[0], 4, 3),
        (quantile(2, [0.3]).outputs[0], 2, 2), (Output("spread", (1, 2, 3), (F(-1), F(0), F(1))), 3, 2),
    ],
)  # fmt: skip
def test_the_least_depth_by_kinks(out: Output, d: int, depth: int) -> None:
    """x(3) - x(1) = (|x1 - x2| + |x1 - x3| + |x2 - x3|)/2 has depth 2: the bound is not more than true."""
    assert lb.least_depth(out, d) == depth


def test_widths_are_bounded_from_the_d_that_the_proof_gives() -> None:
    assert lb.exact_width(255, 3) is None
    assert lb.exact_width(256, 3) == 6553.6
    assert lb.exact_width(65535, 4) is None
    assert lb.exact_width(65536, 4) == pytest.approx(65536 ** (4 / 3) / 10)
    assert lb.exact_width(2**20, 2) is None
    assert lb.exact_width(2**31, 46) is None
    # the median of d numbers holds the maximum of (d + 1)/2: from d = 511 on, not from 256 as Theorem 4.2 says
    assert [lb.maximum_within(median(d).outputs[0], d) for d in (509, 511, 512)] == [255, 256, 256]
    assert lb.maximum_within(rank(10, [3]).outputs[0], 10) == 8


def test_every_depth_3_network_of_ours_keeps_the_bound(tmp_path: Path) -> None:
    for i, (d, what) in enumerate([(256, "max"), (300, "max"), (511, "median"), (600, "median")]):
        args = ["--d", str(d), "--op", what, "--construction", "depth3", "--profile", "structured", "--inputs", "grid"]
        path = exported(tmp_path / str(i), *args)
        found = audit(path)
        (bound,) = (b for b in found["bounds"] if b.get("needed_width"))
        assert found["width"] >= bound["needed_width"]
        assert found["can_be_exact"]


def test_too_narrow_a_network_of_depth_3_is_ruled_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes: list[tuple[int, ...]] = [(256, 256), (256,), (256, 256), (256,), (256, 1), (1,)]
    arrays = [rng.normal(size=shape) for shape in shapes]
    found = audit(chain(tmp_path / "three.onnx", *arrays), "max")
    assert not found["can_be_exact"]
    assert found["witness"] is None
    assert "has a layer of 6554 neurons or more; the widest has 256" in "\n".join(audit_lines(found))
    assert audit(tmp_path / "three.onnx", "median")["can_be_exact"]


@pytest.mark.parametrize("profile", ["structured", "fused"])
@pytest.mark.parametrize("construction", ["depth3", "batcher", "radix", "tree-max"])
def test_a_graph_has_the_layers_of_its_network(tmp_path: Path, construction: str, profile: str) -> None:
    for d in (2, 5):
        out = tmp_path / str(d)
        more = ["--inputs", "grid"] if profile == "fused" else []  # fused, the guard is one Clip and no layers
        path = exported(out, "--d", str(d), "--op", "max", "--construction", construction, "--profile", profile, *more)
        layers, depth = len(layer_widths(load(path), path)) + 1, decode(load(path))["depth"]
        # a fused depth3 file computes another formula than its network: the largest of some entries, a tree of maxima
        assert layers > depth if (construction, profile) == ("depth3", "fused") else layers == depth
        assert audit(path)["can_be_exact"]


def test_comparisons_are_counted_as_the_neurons_they_stand_for(tmp_path: Path) -> None:
    """Max and Min are no ReLU nodes, but no affine ones either; a file that is exact on every float is not ruled out."""
    for i, (op, d) in enumerate([("median", 9), ("median", 4), ("max", 2), ("min", 5), ("sort", 6)]):
        out = tmp_path / str(i)
        path = exported(out, "--d", str(d), "--op", op, "--construction", "batcher", "--profile", "minmax")
        found, about = audit(path), decode(load(path))
        assert found["depth"] == about["depth"]
        assert found["width"] >= about["width"]
        assert found["exact_on_reals"], audit_lines(found)
        assert not found["promises_grid_only"]


def test_the_neurons_of_a_graph_by_hand(tmp_path: Path) -> None:
    """relu(a) and a clip of four, then the maximum of both parts' eight entries beside the input that is read at the end."""
    path = tmp_path / "by-hand.onnx"
    proto = parsed("""(float[n, 4] x) => (float[n, 4] y) <float zero = {0}, float one = {1}> {
        a = Relu(x)
        b = Clip(x, zero, one)
        c = Concat<axis = 1>(a, b)
        m = ReduceMax<axes = [1]>(c)
        y = Add(m, x)
    }""")
    onnx.save(proto, path)
    # 4 ReLUs, 8 for the clip, 4 carried; then 8, 4 and 2 for the maximum and 4 carried each
    assert layer_widths(load(path), path) == [16, 12, 8, 6]


def test_a_structured_file_of_2048_numbers_can_be_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = exported(tmp_path, "--d", "2048", "--construction", "depth3", "--inputs", "grid")
    assert main(["audit", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Counted on its graph" in text
    assert "has a layer of 104858 neurons or more; the widest has 8390656" in text


@pytest.mark.parametrize("mode", ["exact", "l2"])
@pytest.mark.parametrize("profile", ["dense", "matmul", "structured", "fused"])
@pytest.mark.parametrize("construction", ["depth3", "batcher", "radix"])
def test_every_rank_becomes_the_maximum_on_every_input(
    tmp_path: Path, construction: str, profile: str, mode: Literal["exact", "l2"]
) -> None:
    """All vectors of a small grid; ranks below the middle by zeros, the others by ones."""
    d, bits = 4, 2
    for k in range(1, d + 1):
        args = f"--d {d} --rank {k} --bits {bits} --construction {construction} --profile {profile}".split()
        target, entry = reduce_file(exported(tmp_path / str(k), *args), tmp_path / "reduced", mode, seed=k)
        about = entry["description"]
        assert about["d"] == max(k, d + 1 - k)
        assert about["bits"] == bits - (mode == "l2")
        x = np.array(list(itertools.product(range(2 ** about["bits"] + 1), repeat=about["d"]))) / 2.0 ** about["bits"]
        assert np.array_equal(run(target, x)[:, 0], x.max(axis=1))
        assert describe(target)["proved_profile"] == profile or (profile == "fused")
        assert "reduced from" in "\n".join(describe_lines(describe(target)))
        assert audit(target)["can_be_exact"]
        assert verify(target, 20).kept
        if profile in ("dense", "matmul"):
            weights = [m.weight for m in chain_of(load(target), target)]
            assert about["max_weight"] == max(np.abs(w).max() for w in weights)
            assert about["nnz"] == sum(np.count_nonzero(w) for w in weights)


def test_a_rank_of_many_becomes_the_maximum(tmp_path: Path) -> None:
    for k in (8, 3):
        path = exported(tmp_path / str(k), "--d", "13", "--rank", str(k), "--construction", "batcher")
        target, entry = reduce_file(path, tmp_path / "reduced")
        m = entry["description"]["d"]
        assert m == max(k, 14 - k)
        x = np.random.default_rng(1).integers(0, 2**24 + 1, (50, m)) / 2.0**24
        assert np.array_equal(run(target, x)[:, 0], x.max(axis=1))


def test_a_theorem_of_mean_squared_error_is_kept_on_average_over_seeds(tmp_path: Path) -> None:
    """depth3 with --epsilon: the error of the reduced networks against the promise, which describe and verify repeat."""
    path = exported(tmp_path, "--d", "9", "--construction", "depth3", "--epsilon", "0.02")
    x = np.random.default_rng(2).random((2000, 5))
    errors, bound = [], error_bound(decode(load(path)), 5)
    assert bound == pytest.approx(0.02 * 4 * 2**9 / 126)
    for seed in range(20):
        target, entry = reduce_file(path, tmp_path / "reduced", "l2", seed)
        errors.append(np.mean((run(target, x)[:, 0] - x.max(axis=1)) ** 2))
        assert entry["description"]["epsilon"] == bound
        assert not entry["description"]["exact_on_grid"]
    assert np.mean(errors) <= bound
    result = verify(target)
    assert result.kept
    assert "Mean squared error at most" in result.contract
    assert "exact on" not in result.contract


def test_a_network_that_may_fail_is_reduced_in_l2_only(tmp_path: Path) -> None:
    args = ["--d", "64", "--even", "lower", "--construction", "compact", "--failure", "0.05"]
    path = exported(tmp_path, *args)
    with pytest.raises(UserError, match="--mode l2"):
        reduce_file(path, tmp_path / "reduced")
    failure = decode(load(path))["failure_bound"]
    x = np.random.default_rng(3).integers(0, 2**23 + 1, (500, 33)) / 2.0**23
    errors = []
    for seed in range(10):
        target, entry = reduce_file(path, tmp_path / "reduced", "l2", seed)
        errors.append(np.mean((run(target, x)[:, 0] - x.max(axis=1)) ** 2))
        assert entry["description"]["epsilon"] == pytest.approx(4 * failure)
    assert np.mean(errors) <= 4 * failure
    assert audit(target)["can_be_exact"]


def test_what_is_promised_of_uniform_inputs_only_is_reduced_as_such(tmp_path: Path) -> None:
    """The reduced input is no uniform one, but a uniform one given a rare event: far from the middle nothing follows."""
    args = ["--construction", "window5", "--d", "17", "--failure", "0.01"]
    path = exported(tmp_path / "middle", *args, "--rank", "9")
    failure = decode(load(path))["failure_bound"]
    _, entry = reduce_file(path, tmp_path / "reduced", "l2")
    assert entry["description"]["epsilon"] == pytest.approx(4 * failure * 2**17 / comb(17, 9))
    with pytest.raises(UserError, match="no promise"):
        reduce_file(exported(tmp_path / "end", *args, "--rank", "16"), tmp_path / "reduced", "l2")


def test_an_average_over_the_seeds_of_a_network_stays_one(tmp_path: Path) -> None:
    path = exported(tmp_path, "--d", "20", "--rank", "12", "--construction", "linear46", "--failure", "0.02")
    target, _ = reduce_file(path, tmp_path / "reduced", "l2")
    assert "over the seeds of the network and of the reduction" in verify(target, trials=5).contract


@pytest.mark.parametrize("rank_", [1, 2, 3, 5, 6, 7])
def test_the_inputs_of_a_reduction_are_grid_values_on_their_sides(rank_: int) -> None:
    d, bits = 7, 5
    step = to_max(d, rank_, "l2", 1, bits)
    x = np.random.default_rng(0).integers(0, 2 ** (bits - 1) + 1, (100, step.m)) / 2.0 ** (bits - 1)
    inner = x @ step.places.T + step.fixed
    assert (inner * 2**bits == np.rint(inner * 2**bits)).all()
    answer = np.sort(inner, axis=1)[:, rank_ - 1]
    assert np.array_equal(step.scale * answer + step.shift, x.max(axis=1))


def test_refusals(tmp_path: Path) -> None:
    path = exported(tmp_path, "--d", "8", "--construction", "depth3")
    with pytest.raises(UserError, match="--even lower"):
        reduce_file(path, tmp_path)
    with pytest.raises(UserError, match="--seed must be 0 or more"):
        reduce_file(path, tmp_path, "l2", -1)
    with pytest.raises(UserError, match="no such file"):
        audit(tmp_path / "nothing.onnx")
    with pytest.raises(UserError, match="rank 9 is out of range"):
        audit(path, None, 9)
    one = exported(tmp_path / "one", "--d", "5", "--bits", "1", "--construction", "depth3")
    with pytest.raises(UserError, match="1 bit"):
        reduce_file(one, tmp_path, "l2")
    endless = chain(tmp_path / "inf.onnx", np.full((2, 1), np.inf), np.zeros(1), np.ones((1, 1)), np.zeros(1))
    with pytest.raises(UserError, match="infinite"):
        audit(endless)
    onnx.save(parsed("(float[n, 3] x) => (float[n, 3] y) { y = Sigmoid(x) }"), tmp_path / "s.onnx")
    with pytest.raises(UserError, match="Sigmoid"):
        audit(tmp_path / "s.onnx")
