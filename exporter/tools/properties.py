"""VNN-LIB properties of a dense file, for verifiers: `python -m exporter properties FILE --out DIR`.

A property file states the violation, for all real inputs of a box: a verifier that answers `unsat` has proved the property.
Every property has a twin that is false by construction (`-violated`): a verifier has to answer `sat`, and the counterexample
stands beside it. VNN-LIB 1.0 compares an output with a constant, so `swap` and `error` speak of a chain made from the file's
own weights, written beside it.

    local      entries near one vector give an output near its answer
    range      entries in the middle half of the domain give an output in it
    swap       y(x) - y(x with two entries swapped) is 0; false when one entry is overwritten by the other
    error      y(x) - x_k for every k: neither too many of the x_k lie below y nor above it

each up to a grid step, two for a difference of two outputs. Files of `depth3` are exact on the grid alone: they have only
`local`, where all entries are at least a step apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import scipy.sparse as sp

from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.formats.gemm_chain import chain_of
from exporter.formats.manifest import replace_files, writable
from exporter.formats.model_file import assemble, decode, load
from exporter.formats.session import Session
from exporter.ir.network import Weights
from exporter.passes.dense import dense_graph
from exporter.problem.description import grid_of, task_of
from exporter.problem.grid import Grid
from exporter.problem.task import Task

SMALL = 5  # d up to which `swap` and `error` are written: verifiers do not get far beyond
ATTACKS = 500  # random inputs that a property which holds is tried on
Case = list[tuple[int, str, float]]  # (output, "<=" or ">=", limit), all of them at once
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DenseFile:
    """A dense file: its weights, and its claim."""

    proto: onnx.ModelProto
    layers: list[Weights]
    task: Task
    grid: Grid
    construction: str
    _: KW_ONLY
    dtype: str
    stem: str  # of its file name
    name: str  # in the first line of a property


@dataclass(frozen=True, eq=False)
class Property:
    """No input of the box satisfies a case, or `counterexample` does.

    `chain` is the network if it is not the file. With `other` it is the difference of two files, and version 2 names both.
    """

    name: str
    text: str
    lower: Floats
    upper: Floats
    cases: list[Case]
    _: KW_ONLY
    chain: tuple[str, list[Weights]] | None = None
    other: DenseFile | None = None
    counterexample: Floats | None = None

    @property
    def outputs(self) -> int:
        return self.chain[1][-1].matrix.shape[0] if self.chain else 1


def source(path: Path) -> DenseFile:
    """A file as properties need it; UserError says what else to export."""
    return dense_file(load(path), path)


def dense_file(proto: onnx.ModelProto, path: Path) -> DenseFile:
    """The same of a network that was read or made; `path` is its place in messages, and names its files."""
    about = decode(proto)
    remedy = "export with --profile dense --inputs grid --construction " + " or ".join(_able())
    if not about or about["construction"] not in _able() or about.get("epsilon"):
        raise UserError(f"{path}: properties are known for the exact files of some constructions only: {remedy}")
    if about["profile"] != "dense" or about["inputs"] != "grid":
        raise UserError(f"{path} is not a bare chain of Gemm and Relu: {remedy}")
    session = Session(proto)
    task = task_of(about, session.d)
    if len(task.outputs) != 1 or about["certificate"]:
        raise UserError(f"{path} has several outputs, and a property speaks of one: export one statistic")
    grid = grid_of(about)
    name = f"{task.label} of {task.d} numbers by {about['construction']}"
    layers = layers_of(proto, path)
    return DenseFile(proto, layers, task, grid, about["construction"], dtype=about["dtype"], stem=path.stem, name=name)


def _able() -> list[str]:
    return [name for name, c in CONSTRUCTIONS.items() if c.dense_bits]


def layers_of(proto: onnx.ModelProto, path: Path) -> list[Weights]:
    """The affine maps of a chain of Gemm and Relu."""
    return [Weights(sp.csr_array(m.weight.T), m.bias) for m in chain_of(proto, path)]


def properties(of: DenseFile, seed: int = 0, largest: int = SMALL) -> Iterator[Property]:
    """Each property that holds, then its violated twin. The seed draws the vector of `local` and the entries of `swap`."""
    rng = np.random.default_rng(seed)
    yield from _local(of, rng)
    if not CONSTRUCTIONS[of.construction].everywhere:
        return
    yield from _range(of)
    d, ranks = of.task.d, of.task.ranks
    if 1 < d <= largest:
        i, j = (0, d - 1) if not seed else sorted(rng.choice(d, 2, replace=False).tolist())
        yield from _swap(of, i, j)
        if len(ranks) == 1:
            yield from _error(of, ranks[0])


def _local(of: DenseFile, rng: np.random.Generator) -> Iterator[Property]:
    """A vector of distinct even grid values. Entries move by a step, or by half a step, which leaves them a step apart."""
    grid, d = of.grid, of.task.d
    if grid.cells // 2 + 1 < d:
        return  # no room for such a vector
    everywhere = CONSTRUCTIONS[of.construction].everywhere
    radius, slack = (grid.step, grid.step) if everywhere else (grid.step / 2, grid.step / 4)
    x = grid.values(2 * rng.choice(grid.cells // 2 + 1, d, replace=False)).astype(np.float64)
    lower, upper = np.maximum(x - radius, grid.low), np.minimum(x + radius, grid.high)
    low, high = (float(of.task.answers(end[None])[0, 0]) for end in (lower, upper))
    text = "entries near one vector give an output near its answer"
    yield Property("local", text, lower, upper, [[(0, "<=", low - slack)], [(0, ">=", high + slack)]])
    text = "entries near one vector give an output below the largest one there"
    cases: list[Case] = [[(0, ">=", high - grid.step / 4)]]
    yield Property("local-violated", text, lower, upper, cases, counterexample=upper)


def _range(of: DenseFile) -> Iterator[Property]:
    grid, d = of.grid, of.task.d
    quarter = (grid.hi - grid.lo) / 4
    lo, hi = grid.lo + quarter, grid.hi - quarter
    box = np.full(d, lo), np.full(d, hi)
    cases: list[Case] = [[(0, "<=", lo - grid.step)], [(0, ">=", hi + grid.step)]]
    yield Property("range", "the output lies in the range of the input", *box, cases)
    top = np.floor(hi / grid.step) * grid.step
    text = "the output lies below the highest grid value of the range of the input"
    cases = [[(0, ">=", float(top - grid.step / 4))]]
    yield Property("range-violated", text, *box, cases, counterexample=np.full(d, top))


def _swap(of: DenseFile, i: int, j: int) -> Iterator[Property]:
    grid, d, rank = of.grid, of.task.d, of.task.ranks[-1]
    box = np.full(d, grid.lo), np.full(d, grid.hi)
    swapped, over = np.arange(d), np.arange(d)
    swapped[[i, j]], over[i] = (j, i), j
    # one entry more or less at the low end moves the entry of this rank from one end to the other
    x = np.full(d, grid.high)
    x[[i, *(k for k in range(d) if k not in (i, j))][:rank] if rank < d else [k for k in range(d) if k != i]] = grid.low
    least = (grid.high - grid.low) * float(of.task.outputs[0].weights[-1]) / 2
    names = "the first and the last entry" if (i, j) == (0, d - 1) else f"entries {i} and {j}"
    for name, text, order, most, example in (
        ("swap", f"swapping {names} changes nothing", swapped, 2 * grid.step, None),
        ("overwrite", f"overwriting entry {i} by entry {j} changes the output by less than {least:g}", over, least, x),
    ):
        chain = name, minus(of.layers, reordered(of.layers, order), grid.lo)
        cases: list[Case] = [[(0, "<=", -most)], [(0, ">=", most)]]
        yield Property(
            "swap" if example is None else "swap-violated", text, *box, cases, chain=chain, counterexample=example
        )


def _error(of: DenseFile, rank: int) -> Iterator[Property]:
    """y is too high if `rank` of the y - x_k are a step or more; one fewer are no error."""
    grid, d = of.grid, of.task.d
    box = np.full(d, grid.lo), np.full(d, grid.hi)
    chain = ("error", error_chain(of.layers, grid.low))

    name = "median" if 2 * rank == d + 1 else f"entry of rank {rank}"
    yield Property("error", f"the output is the {name}", *box, ranked(d, rank, d - rank + 1, grid.step), chain=chain)
    text = f"fewer than {rank - 1} entries lie below the output, and fewer than {d - rank} above"
    x = np.where(np.arange(d) < max(rank - 1, 1), grid.low, grid.high)
    cases = ranked(d, rank - 1, d - rank, grid.step)
    yield Property("error-violated", text, *box, cases, chain=chain, counterexample=x)


def ranked(d: int, high: int, low: int, step: float) -> list[Case]:
    """`high` of d differences are a step or more above zero, or `low` of them below."""
    over: list[Case] = [[(k, ">=", step) for k in some] for some in combinations(range(d), high) if high]
    return over + [[(k, "<=", -step) for k in some] for some in combinations(range(d), low) if low]


def equal(of: DenseFile, other: DenseFile, beyond: DenseFile) -> Iterator[Property]:
    """Two networks of different shape give the same order statistic; `beyond` gives the entry of the next rank."""
    grid, d, rank = of.grid, of.task.d, of.task.ranks[0]
    box = np.full(d, grid.lo), np.full(d, grid.hi)
    cases: list[Case] = [[(0, ">=", 2 * grid.step)], [(0, "<=", -2 * grid.step)]]
    low = np.where(np.arange(d) < rank, grid.low, grid.high)
    for name, second, chain, x in (
        ("equal", other, f"minus-{other.construction}", None),
        ("equal-violated", beyond, "minus-next", low),
    ):
        difference = minus(of.layers, second.layers, grid.lo)
        text = f"the output is that of the {second.name}"
        yield Property(name, text, *box, cases, chain=(chain, difference), other=second, counterexample=x)


def reordered(layers: list[Weights], order: npt.NDArray[np.intp]) -> list[Weights]:
    """y(x[order])."""
    d = len(order)
    moved = layers[0].matrix @ sp.csr_array((np.ones(d), (np.arange(d), order)), shape=(d, d))
    return [Weights(_csr(moved), layers[0].bias), *layers[1:]]


def minus(a: list[Weights], b: list[Weights], low: float) -> list[Weights]:
    """The difference of two chains, side by side. Their outputs are at least `low`: one neuron carries the shorter one's."""
    pairs = list(zip(*(_lengthened(chain, max(len(a), len(b)), low) for chain in (a, b)), strict=True))
    chain = []
    for i, (one, two) in enumerate(pairs[:-1]):
        matrix = sp.block_diag([one.matrix, two.matrix]) if i else sp.vstack([one.matrix, two.matrix])
        chain.append(Weights(_csr(matrix), np.concatenate([one.bias, two.bias])))
    one, two = pairs[-1]
    return [*chain, Weights(_csr(sp.hstack([one.matrix, -two.matrix])), one.bias - two.bias)]


def _lengthened(chain: list[Weights], n: int, low: float) -> list[Weights]:
    if len(chain) == n:
        return chain
    last, keep = chain[-1], _csr(sp.identity(chain[-1].matrix.shape[0]))
    zero = np.zeros_like(last.bias)
    more = [Weights(keep, zero)] * (n - len(chain) - 1)
    return [*chain[:-1], Weights(last.matrix, last.bias - low), *more, Weights(keep, zero + low)]


def error_chain(layers: list[Weights], low: float) -> list[Weights]:
    """y(x) - x_k for every k."""
    d = layers[0].matrix.shape[1]
    answers = Weights(_csr(sp.vstack([layers[-1].matrix] * d)), np.repeat(layers[-1].bias, d))
    itself = Weights(_csr(sp.identity(d)), np.full(d, -0.0))
    return minus([*layers[:-1], answers], [itself], low)


def _csr(matrix: object) -> sp.csr_array:
    return sp.csr_array(matrix)


def network(of: DenseFile, p: Property) -> onnx.ModelProto:
    """The file that a property speaks of."""
    if not p.chain:
        return of.proto
    name, layers = p.chain
    graph = dense_graph(layers, of.dtype)
    x, y = (("batch_size", len(p.lower)), ("batch_size", p.outputs))
    return assemble(graph, f"{of.task.label}-{name}", {"x": (of.dtype, x)}, {"y": (of.dtype, y)})


def checked(of: DenseFile, p: Property) -> Floats | None:
    """The outputs for the counterexample in onnxruntime, None for a property that holds; UserError if the file is wrong."""
    runs = [Session(network(of, p)).run]
    if p.other:
        one, two = Session(of.proto), Session(p.other.proto)
        runs.append(lambda x: one.run(x) - two.run(x))
    rng = np.random.default_rng(0)
    spread = rng.random((ATTACKS, len(p.lower)))
    x = p.lower + (p.upper - p.lower) * np.concatenate([spread, np.round(spread), np.round(spread * 8) / 8])
    for run in runs:
        if p.counterexample is None:
            bad = np.flatnonzero(_satisfied(p, run(x)))
            if len(bad):
                raise UserError(f"{p.name} is violated by {x[bad[0]].tolist()}: run `prove`, the file may be wrong")
            continue
        y = run(p.counterexample[None])
        if not _satisfied(p, y).all():
            raise UserError(f"{p.name}: the counterexample gives {y[0].tolist()}: run `prove`, the file may be wrong")
    return None if p.counterexample is None else np.asarray(y[0], np.float64)


def _satisfied(p: Property, y: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    def one(case: Case) -> npt.NDArray[np.bool_]:
        held = [y[:, k] <= limit if sign == "<=" else y[:, k] >= limit for k, sign, limit in case]
        return np.asarray(np.all(held, axis=0))

    return np.asarray(np.any([one(case) for case in p.cases], axis=0))


def vnnlib(of: DenseFile, p: Property, version: int = 1) -> str:
    """The property in VNN-LIB 1.0, or 2.0."""
    d = len(p.lower)
    holds = p.counterexample is None
    step = f", up to the grid step {of.grid.step:g}" if holds else ""
    answer = "unsat: it does, on all real inputs of the domain" if holds else "sat: it does not"
    lines = [f"; {of.name}: {p.text}{step}", f"; {answer}"]
    atoms = [[(f"Y[0,{k}]", sign, number(limit)) for k, sign, limit in case] for case in p.cases]
    networks = [("f", "", p.outputs)]
    if version == 2 and p.other:
        networks = [("f", "_f", 1), ("g", "_g", 1)]
        # y_f - y_g >= limit
        atoms = [
            [("Y_f[0,0]", sign, f"({'+' if sign == '>=' else '-'} Y_g[0,0] {number(abs(limit))})")]
            for ((_, sign, limit),) in p.cases
        ]
    if version == 2:
        lines.append("(vnnlib-version <2.0>)")
        for name, suffix, outputs in networks:
            ends = (
                f"(declare-input X{suffix} {of.dtype} [1, {d}])",
                f"(declare-output Y{suffix} {of.dtype} [1, {outputs}])",
            )
            lines += [f"(declare-network {name}", *(f"    {end}" for end in ends), ")"]
    else:
        lines += [f"(declare-const {name}_{i} Real)" for name, n in (("X", d), ("Y", p.outputs)) for i in range(n)]
    x = f"X{networks[0][1]}[0,{{}}]"
    for i, (low, high) in enumerate(zip(p.lower, p.upper, strict=True)):
        lines += [f"(assert (>= {x.format(i)} {number(low)}))", f"(assert (<= {x.format(i)} {number(high)}))"]
        lines += [f"(assert (== X_g[0,{i}] {x.format(i)}))"] if len(networks) > 1 else []
    texts = [[f"({sign} {y} {limit})" for y, sign, limit in case] for case in atoms]
    if version == 1 or len(texts) > 1:
        joined = [f"(and {' '.join(t)})" if version == 1 or len(t) > 1 else t[0] for t in texts]
        lines += ["(assert (or", *(f"    {text}" for text in joined), "))"]
    else:
        lines += [f"(assert {text})" for text in texts[0]]
    text = "\n".join(lines) + "\n"
    return text if version == 2 else re.sub(r"([XY])\[0,(\d+)\]", r"\1_\2", text)


def counterexample(p: Property, y: Sequence[float]) -> str:
    """The input and its outputs, in the form of VNN-COMP."""
    assert p.counterexample is not None
    pairs = [f"(X_{i} {number(v)})" for i, v in enumerate(p.counterexample)]
    return "(" + "\n".join([*pairs, *(f"(Y_{i} {number(v)})" for i, v in enumerate(y))]) + ")\n"


def number(value: float) -> str:
    """Digits without an exponent, exact: every grid number is a dyadic one."""
    text = f"{value:.60f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def serialized(proto: onnx.ModelProto) -> bytes:
    return bytes(proto.SerializeToString(deterministic=True))


def write_properties(path: Path, out: Path) -> list[tuple[str, str]]:
    """Write the properties of a file, the networks and the counterexamples to a folder; (property, answer) each."""
    of = source(path)
    files = {out / path.name: path.read_bytes()}
    found = []
    for p in properties(of):
        y = checked(of, p)
        stem = f"{path.stem}-{p.name}"
        files[out / f"{stem}.vnnlib"] = vnnlib(of, p).encode()
        files[out / f"{stem}.v2.vnnlib"] = vnnlib(of, p, 2).encode()
        if p.chain:
            files[out / f"{path.stem}-{p.chain[0]}.onnx"] = serialized(network(of, p))
        if y is not None:
            files[out / f"{stem}.counterexample"] = counterexample(p, y.tolist()).encode()
        found.append((f"{stem}.vnnlib", "unsat" if y is None else "sat"))
    with writable(out):
        replace_files(files)
    return found
