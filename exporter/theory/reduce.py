"""Section 4 as transformations of a file: a network for a rank becomes one for the maximum, of the same depth and width.

    exact   (Theorem 4.2)    the entries above the rank are fixed to 1: rank k of d is the maximum of k
    l2      (Theorem 4.3)    they are fixed to random values in [1/2, 1], all entries are permuted, the free entries are
                             halved, and the answer is doubled

A rank k below the middle is rank d + 1 - k of 1 - x. This fixes entries to 0 (or to [0, 1/2]) and gives the maximum of
d + 1 - k numbers.

For the median of 2d - 1, the paper puts the free entries below (2d - 1)/(4d - 3). Here they are below 1/2, so that halving
and doubling are exact and grid values stay on the grid, with one bit less. The promises of `l2` (proof in
docs/paper-notes.md):

- An exact network stays exact on the grid, with one bit less.
- A network that fails with probability p on inputs in random order still fails with probability p, on average over the
  seeds. A wrong answer is off by at most 2, so the mean squared error is at most 4p. If p is an average over the seeds of
  the network, so is the bound.
- A network that fails with probability p on uniform inputs fails with probability at most p 2^d/binom(d, m), because the
  reduced input is a uniform input under a condition of probability binom(d, m)/2^d.
- A mean squared error ε on uniform inputs becomes at most ε times 4 2^d/binom(d, m), which is at most 8 √m ε for the median
  of d = 2m - 1.

All bounds but the first are averages over the seeds. So the written network is measured too, and refused if it exceeds the
bound.

In a chain, fixed entries change the first bias, and all else changes the first and the last weights. Any other graph gets
affine nodes at its input and output.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from exporter.analysis.contract import MANTISSA
from exporter.analysis.promise import uniform_only
from exporter.errors import UserError
from exporter.formats.gemm_chain import chain_of
from exporter.formats.manifest import write
from exporter.formats.model_file import decode, encode, load
from exporter.formats.session import open_session, running
from exporter.problem.description import Description

Mode = Literal["exact", "l2"]
MEASURED = 1000  # uniform vectors that measure one seed


@dataclass(frozen=True, eq=False)
class Reduction:
    """The input of the network is x = places @ x' + fixed, and the new output is y' = scale y + shift."""

    places: npt.NDArray[np.float64]
    fixed: npt.NDArray[np.float64]
    scale: float = 1.0
    shift: float = 0.0

    @property
    def m(self) -> int:
        return int(self.places.shape[1])


def to_max(d: int, rank: int, mode: Mode, seed: int = 0, bits: int = 24) -> Reduction:
    """The reduction of rank `rank` of d numbers in [0, 1] to the maximum of max(rank, d + 1 - rank) numbers in [0, 1]."""
    if 2 * rank < d + 1:
        step = to_max(d, d + 1 - rank, mode, seed, bits)
        return Reduction(-step.places, 1.0 - step.fixed, -step.scale, step.scale + step.shift)
    rng = np.random.default_rng(seed)
    order = np.arange(d) if mode == "exact" else rng.permutation(d)
    places, fixed = np.zeros((d, rank)), np.zeros(d)
    places[order[:rank], np.arange(rank)] = 1.0
    if mode == "exact":
        fixed[order[rank:]] = 1.0
        return Reduction(places, fixed)
    half: int = 2 ** (bits - 1)
    fixed[order[rank:]] = (half + rng.integers(0, half, d - rank, endpoint=True)) / (2 * half)
    return Reduction(places / 2, fixed, 2.0)


def error_bound(about: Description, m: int) -> float:
    """A bound of the mean squared error of the `l2` reduction, on average over the seeds. It is 0 for an exact file."""
    if about["exact_on_grid"]:
        return 0.0
    d, bits = int(about["d"]), int(about["bits"])
    rarer = Fraction(2**d, comb(d, m))  # 1 / the probability that m entries of a uniform input are below 1/2
    if about["epsilon"] is not None:
        return float(4 * about["epsilon"] * rarer)
    if uniform_only(about):
        return float(4 * about["failure_bound"] * rarer)
    ties = 0.0 if about["ties"] == "exact" else comb(d, 2) / 2 ** (bits - 1)  # equal entries may cause a failure
    return 4 * (float(about["failure_bound"]) + ties)


def reduce_proto(proto: onnx.ModelProto, step: Reduction, profile: str) -> onnx.ModelProto:
    """The reduced model. A chain stays a chain: only its first and last weights change."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    graph = out.graph
    stored = {t.name: t for t in graph.initializer}
    source = next(i for i in graph.input if i.name not in stored)
    dtype = helper.tensor_dtype_to_np_dtype(source.type.tensor_type.elem_type)
    source.type.tensor_type.shape.dim[1].dim_value = step.m
    if profile not in ("dense", "matmul"):
        _wrap(graph, source.name, step, dtype)
        return out

    def change(name: str, new: npt.NDArray[np.float64]) -> None:
        stored[name].CopyFrom(numpy_helper.from_array(new.astype(dtype), name))

    def read(name: str) -> npt.NDArray[np.float64]:
        return numpy_helper.to_array(stored[name]).astype(np.float64)

    gemm = profile == "dense"
    weight, bias = (graph.node[0].input[1], graph.node[0 if gemm else 1].input[2 if gemm else 1])
    change(bias, read(bias) + step.fixed @ read(weight))
    change(weight, step.places.T @ read(weight))
    weight, bias = (graph.node[-1 if gemm else -2].input[1], graph.node[-1].input[2 if gemm else 1])
    change(bias, step.scale * read(bias) + step.shift)
    change(weight, step.scale * read(weight))
    return out


def _wrap(graph: onnx.GraphProto, source: str, step: Reduction, dtype: np.dtype[Any]) -> None:
    """Add an affine node before the graph, and one or two after it."""

    def constant(name: str, value: npt.ArrayLike) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), f"reduction_{name}"))
        return f"reduction_{name}"

    for node in graph.node:
        node.input[:] = [f"{source}_all" if name == source else name for name in node.input]
    places = [source, constant("places", step.places.T), constant("fixed", step.fixed)]
    graph.node.insert(0, helper.make_node("Gemm", places, [f"{source}_all"]))
    behind = [("Mul", "scale", step.scale)] * (step.scale != 1) + [("Add", "shift", step.shift)] * (step.shift != 0)
    for op, name, value in behind:
        result = graph.output[0].name
        for node in graph.node:
            node.output[:] = [f"{result}_{name}" if made == result else made for made in node.output]
            node.input[:] = [f"{result}_{name}" if made == result else made for made in node.input]
        graph.node.append(helper.make_node(op, [f"{result}_{name}", constant(name, value)], [result]))


def reduce_file(path: Path, out: Path, mode: Mode = "exact", seed: int = 0) -> tuple[Path, dict[str, Any]]:
    """Write the reduced network of an exported file, and return its path and manifest entry."""
    if seed < 0:
        raise UserError(f"--seed must be 0 or more, not {seed}")
    proto = load(path)
    about = decode(proto)
    d, rank = _one_rank(about, path)
    if mode == "exact" and not about["exact_on_grid"]:
        raise UserError(
            f"{path} is not exact, and its promise for random inputs does not cover inputs with fixed entries: "
            "use --mode l2, or reduce an exact file"
        )
    if mode == "l2" and about["bits"] < 2:
        raise UserError(f"{path} has a grid of 1 bit, and --mode l2 takes one: export with more --bits")
    # a promised mean squared error is for uniform reals, all other promises are for grid values
    step = to_max(d, rank, mode, seed, int(about["bits"]) if about["epsilon"] is None else 53)
    chained = about["profile"] in ("dense", "matmul")
    if (
        chained
        and step.shift
        and about["exact_on_grid"]
        and (about["mantissa_bits"] or 0) > MANTISSA[about["dtype"]] - 1
    ):
        raise UserError(
            f"{path} has no bit left for 1 - y, which a rank below the middle takes: use --profile structured"
        )
    reduced = reduce_proto(proto, step, about["profile"])
    bound = error_bound(about, step.m)
    if bound >= 1:
        raise UserError(
            f"the reduction of rank {rank} of {d} would promise a mean squared error of {bound:.2g}, which is no promise"
        )
    about |= {
        "op": "max",
        "d": step.m,
        "ranks": [step.m],
        "outputs": [{"name": "max", "ranks": [step.m], "weights": [1.0]}],
        "even": "mean",
        "epsilon": bound or None,
        "reduced_from": {"file": path.name, "d": d, "rank": rank, "mode": mode, "seed": seed},
        "nnz": None,
        "max_weight": None,
        # the new nodes before the guard round too, so the file promises nothing for data off the grid
        "inputs": "grid",
        "off_grid_error": None,
    }
    if mode == "l2":
        about |= {"bits": about["bits"] - 1, "step": about["step"] * 2}
    if chained:
        maps = [m.weight for m in chain_of(reduced, path)]
        about |= {
            "nnz": sum(int(np.count_nonzero(w)) for w in maps),
            "max_weight": max(float(np.abs(w).max()) for w in maps),
        }
    with running(path):
        measured = _measure(reduced, about) if bound else 0.0
    if measured > bound:
        raise UserError(
            f"with seed {seed} the mean squared error is {measured:.3g} on {MEASURED} uniform vectors, above the "
            f"{bound:.3g} that the theorem promises on average over seeds: try --seed {seed + 1}"
        )
    del reduced.metadata_props[:]
    helper.set_model_props(reduced, encode(about))
    onnx.checker.check_model(reduced, full_check=True)
    suffix = "" if mode == "exact" else f"-l2-seed{seed}"
    target = out / f"max-from-{path.stem}{suffix}.onnx"
    return target, write(reduced, target, about)


def _one_rank(about: Description, path: Path) -> tuple[int, int]:
    """d and the rank of a file that computes one rank on [0, 1]. UserError for any other file."""
    if not about:
        raise UserError(f"{path} was not written by onnx-median, so its rank is unknown: export it with this tool")
    outputs = about["outputs"]
    if len(outputs) != 1 or len(outputs[0]["ranks"]) != 1 or about["certificate"]:
        raise UserError(
            f"{path} does not compute one rank: export with --even lower, without --certificate, or one --rank"
        )
    if about["domain"] != [0.0, 1.0]:
        raise UserError(f"{path} works on {about['domain']}: the reduction is stated for [0, 1]")
    return int(about["d"]), int(outputs[0]["ranks"][0])


def _measure(proto: onnx.ModelProto, about: Description) -> float:
    """The mean squared error on uniform vectors, rounded to the grid."""
    session = open_session(proto, threads=0)
    rows = about["batch"] or max(1, min(MEASURED, (1 << 25) // about["width"]))
    rng, errors = np.random.default_rng(0), []
    for _ in range(0, MEASURED, rows):
        x = np.rint(rng.random((rows, about["d"])) * 2.0 ** about["bits"]) / 2.0 ** about["bits"]
        data = x.astype(about["dtype"])
        got = np.asarray(session.run(None, {session.get_inputs()[0].name: data})[0])[:, 0]
        errors.append((got.astype(np.float64) - data.max(axis=1)) ** 2)
    return float(np.concatenate(errors).mean())
