"""One catalogue of small named networks: every test of readings runs over all of them.

    BLOCKS   the thirteen building blocks of the paper's Appendix G, with what its lemmas state
    CASES    every block and many small constructions as networks, with inputs that are on their grid
    TELLING  the constructions among them that `make test` runs; `make slow` runs all

A new construction enters `_constructions` and is tested in every reading at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from exporter.formula import trace
from exporter.ir.linear import Scalar
from exporter.ir.network import Network, network
from exporter.ir.trace import Node, assume, vector
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.spec import Spec
from exporter.problem.task import Task
from tests import paper_blocks as pr
from tests.tiers import telling

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """One argument of a building block: n entries in [lo, hi], multiples of `step`."""

    n: int
    lo: float = 0.0
    hi: float = 1.0
    step: float = 1 / 16


@dataclass(frozen=True)
class Block:
    """A building block at one size, and what the paper states of it there.

    `width` is the stated bound, or where the paper gives an order only, the neurons of its definition counted with two
    per carried value; the texts say so.
    """

    name: str
    label: str
    parts: tuple[Part, ...]
    formula: Callable[..., Node]
    layers: int
    width: int
    width_text: str
    weight: Scalar
    weight_text: str

    def network(self) -> Network:
        return block_network(self.parts, self.formula)


def block_network(parts: tuple[Part, ...], formula: Callable[..., Node]) -> Network:
    """A formula of several arguments as a network of one input vector: the arguments one after the other."""
    source = vector(sum(p.n for p in parts), min(p.lo for p in parts), max(p.hi for p in parts))
    nodes, start = [], 0
    for p in parts:
        nodes.append(assume(source.take(slice(start, start + p.n)), p.lo, p.hi))
        start += p.n
    out = formula(*nodes)
    return network(source, out.reshape(out.size))


def blocks(d: int, p: int, q: int, b: int, delta: Fraction) -> list[Block]:
    """The thirteen building blocks on d' = d entries; p ranks, slots, buckets or block length, q blocks, scale b."""
    w, signed, unit, many = 1 / delta, Part(1, -1, 1), Part(1), Part(d)
    bucket = pr.hash_table(d, p, 8, [2])[0]
    return [
        Block("maximum", "Definition G.1", (signed, signed), pr.maximum, 1, 3, "3", 1, "1"),
        Block("comparison", "Definition G.2", (signed, signed),
              lambda x, y: pr.compare(x, y, delta), 1, 2, "2", w, "1/δ"),
        Block("non-zero counter", "Definition G.4", (many,),
              lambda x: pr.count_nonzero(x, delta), 1, 2 * d, "2d'", w, "1/δ"),
        Block("masking", "Definition G.6", (many, unit, unit),
              lambda x, u, low: pr.mask(x, u, low, delta), 1, 4 * d, "4d'", w, "1/δ"),
        Block("filtering", "Definition G.8", (many, unit, unit),
              lambda x, u, low: pr.filter(x, u, low, delta), 1, 4 * d, "4d'", w + 1, "1/δ + 1"),
        Block("indicator function product", "Definition G.10", (unit, Part(1, -3, 3, 1)),
              pr.indicator_product, 1, 4, "4", 1, "1"),
        Block("rank selection", "Definition G.12", (many, Part(p, 1, d, 1)),
              lambda x, r: pr.rank_select(x, r, delta),
              2, max(2 * d * d + 2 * d + 2 * p, 4 * p * d), "max(2d'^2 + 2d' + 2p, 4pd')", w, "1/δ"),
        Block("non-zero element shortlisting", "Definition G.14", (many, unit, unit),
              lambda x, u, low: pr.shortlist(x, u, low, p, delta),
              3, max(8 * d, 4 * p * d), "O(pd'), here max(8d', 4pd')", 2 * w, "2/δ"),
        Block("rank computing", "Definition G.16", (many, Part(q), unit),
              lambda x, y, e: pr.rank_compute(x, y, e, delta),
              1, 2 * d + 4 * q, "O(max(d', d'')), here 2d' + 4d''", w, "1/δ"),
        Block("rank scaling", "Definition G.18", (many, Part(1, 0, d, 1)),
              lambda x, r: pr.rank_scale(x, r.reshape(), b, delta),
              2, 4 * d, "4d'", max(Fraction(d * b), w), "max(d'b, 1/δ)"),
        Block("ceiling", "Definition G.20", (Part(1, -d, d, 1 / d),),
              lambda x: pr.ceiling(x.reshape(), d), 1, 4 * (d + 1), "4(d' + 1)", d, "d'"),
        Block("hashing", "Definition G.22", (many,), lambda x: pr.hash(x, bucket, p), 1, p, "p'", 1, "1"),
        Block("block extraction", "Definition G.24", (Part(p * q), Part(1, 0, p, 1)),
              lambda x, s: pr.block_extract(x, s, p, delta), 3, 4 * p * q + 2, "O(pq), here 4pq + 2", w, "1/δ"),
    ]  # fmt: skip


# At this size every weight is a dyadic number (b = 3 makes d'b/k whole), so that float64 is exact.
BLOCKS_SIZE = "d' = 4, d'' = q = 3, p = p' = 3, b = 3, δ = 1/16"
BLOCKS = {block.name: block for block in blocks(4, 3, 3, 3, Fraction(1, 16))}


@dataclass(frozen=True, eq=False)
class Case:
    """A network, the step of the grid its inputs lie on, and inputs from harmless to hostile."""

    name: str
    build: Callable[[], Network]
    step: float
    inputs: Callable[[np.random.Generator, int], Array]

    @cached_property
    def net(self) -> Network:
        return self.build()


def _block_case(block: Block) -> Case:
    def inputs(rng: np.random.Generator, n: int) -> Array:
        return np.concatenate([_hostile(rng, n, p) for p in block.parts], axis=1)

    return Case(block.name, block.network, min(p.step for p in block.parts), inputs)


def _hostile(rng: np.random.Generator, n: int, part: Part) -> Array:
    """A third of the rows anywhere on the grid, a third of few neighbouring values, a third at the ends."""
    cells = round((part.hi - part.lo) / part.step)
    anywhere = rng.integers(0, cells, (n, part.n), endpoint=True)
    close = np.clip(rng.integers(0, cells, (n, 1), endpoint=True) + rng.integers(-1, 2, (n, part.n)), 0, cells)
    ends = rng.choice([0, 1, cells - 1, cells], (n, part.n))
    kind = rng.integers(0, 3, (n, 1))
    return part.lo + np.choose(kind, [anywhere, close, ends]) * part.step


def construction_case(
    construction: str, task: Task, bits: int = 8, domain: tuple[float, float] = (0.0, 1.0), **options: Any
) -> Case:
    """A construction as the exporter traces it; its inputs come from every family of exporter.problem.families."""
    form, rounded = options.pop("form", "pair"), options.pop("rounded", None)
    chosen = Spec(task, construction, domain=domain, bits=bits, **options)
    extras = [f"{k}={v}" for k, v in options.items()] + ([form] if form != "pair" else []) + ["guarded"] * bool(rounded)
    where = [f"{domain[0]:g}..{domain[1]:g}"] if domain != (0, 1) else []
    name = "-".join([task.label, construction, f"d{task.d}", f"b{bits}", *where, *extras])

    def inputs(rng: np.random.Generator, n: int) -> Array:
        each = -(-n // len(UNITS))
        units = [family(rng, each, task.d, chosen.grid.cells) for family in UNITS.values()]
        return chosen.grid.values(np.concatenate(units))

    return Case(name, lambda: trace(chosen, form, rounded=rounded)[0], chosen.grid.step, inputs)


def _constructions() -> list[Case]:
    cases = []
    for name in ("radix", "depth3", "batcher"):
        cases += [construction_case(name, tasks.median(d)) for d in (1, 2, 3, 5, 8, 16)]
        cases += [
            construction_case(name, tasks.median(4, "lower")),
            construction_case(name, tasks.median(4, "upper"), bits=24),
            construction_case(name, tasks.sort(5)),
            construction_case(name, tasks.rank(6, [1, 4])),
            construction_case(name, tasks.rank(6, [5, 2])),
            construction_case(name, tasks.extremum(7, "max")),
            construction_case(name, tasks.extremum(7, "min")),
            construction_case(name, tasks.quantile(5, [0.25, 0.5, 0.75])),
            construction_case(name, tasks.median(5), bits=8, domain=(0, 255)),
            construction_case(name, tasks.median(6), bits=6, domain=(-1, 1)),
            construction_case(name, tasks.median(3), bits=10, domain=(0, 1000)),
            construction_case(name, tasks.median(4), certificate=True),
            construction_case(name, tasks.rank(5, [2, 3]), certificate=True, form="bounded"),
            construction_case(name, tasks.median(4), rounded="float64"),
            construction_case(name, tasks.median(3), bits=10, domain=(-3, 1000), rounded="float64"),
            construction_case(
                name, tasks.rank(4, [2]), bits=6, domain=(0.125, 0.25), rounded="float64", certificate=True
            ),
        ]
    for form in ("pair", "saturating", "bounded"):
        cases += [construction_case("radix", tasks.median(6), bits=7, form=form, radix=t) for t in (4, 16)]
        cases += [construction_case("radix", tasks.median(9), form=form, optimize_for=t) for t in ("latency", "depth")]
        cases.append(construction_case("radix", tasks.rank(5, [1, 3, 4]), bits=5, form=form))
    cases += [construction_case("depth3", tasks.median(d), form="saturating") for d in (2, 5)]
    cases.append(construction_case("depth3", tasks.rank(2, [1]), epsilon=0.75))  # δ = ε/(12 d^4) = 1/256
    cases.append(construction_case("batcher", tasks.sort(17)))
    cases += [construction_case("batcher", tasks.median(d), rounded="float64") for d in (36, 41)]  # two sorted halves
    return cases


def _planned() -> list[Case]:
    """The constructions with a schedule, at a failure that small d allows: some inputs fail, in every reading alike."""
    loose: dict[str, Any] = {"failure": 0.2}
    return [
        construction_case("depth5", tasks.median(30), **loose),
        construction_case("depth5", tasks.median(17), domain=(0, 255), **loose),
        construction_case("depth5", tasks.rank(16, [2, 3, 14]), bits=4, certificate=True, **loose),
        construction_case("linear46", tasks.median(16), bits=4, **loose),
        construction_case("linear46", tasks.rank(17, [12]), **loose),
        construction_case("linear46", tasks.median(24), bits=6, **loose),
        construction_case("compact", tasks.median(16), failure=0.2, depth=7),
        construction_case("compact", tasks.median(17), domain=(0, 255), failure=0.2, depth=9),
        construction_case("compact", tasks.median(24), failure=0.2, depth=13, certificate=True),
        construction_case("compact", tasks.rank(20, [2, 19]), bits=4, failure=0.2, depth=9),
        construction_case("compact", tasks.median(40), bits=6, failure=0.2, depth=12),
        construction_case("compact", tasks.median(33), failure=0.2, depth=15),
        construction_case("linear18", tasks.median(40), **loose),
        construction_case("linear18", tasks.rank(33, [9]), domain=(-1, 1), certificate=True, **loose),
        construction_case("linear-max", tasks.extremum(16, "max"), **loose),
        construction_case("linear-max", tasks.extremum(33, "max"), domain=(0, 255), **loose),
        construction_case("tree-max", tasks.extremum(9, "max")),
        construction_case("tree-max", tasks.extremum(16, "max"), width=48),
        construction_case("tree-max", tasks.extremum(13, "max"), depth=5, certificate=True),
    ]


CASES = {c.name: c for c in [*map(_block_case, BLOCKS.values()), *_constructions(), *_planned()]}
TELLING = [
    "median-radix-d1-b8",  # no layer at all
    "median-upper-radix-d4-b24",
    "q0.25-0.5-0.75-radix-d5-b8",
    "median-radix-d6-b6--1..1",
    "rank2-3-radix-d5-b8-certificate=True-bounded",
    "median-radix-d3-b10--3..1000-guarded",
    "median-radix-d6-b7-radix=16",
    "median-radix-d9-b8-optimize_for=latency-saturating",
    "median-depth3-d8-b8",
    "rank5-2-depth3-d6-b8",
    "median-depth3-d5-b8-saturating",
    "rank2-depth3-d4-b6-0.125..0.25-certificate=True-guarded",
    "median-batcher-d16-b8",
    "rank5-2-batcher-d6-b8",
    "median-batcher-d5-b8-0..255",
    "median-batcher-d36-b8-guarded",
    "median-depth5-d17-b8-0..255-failure=0.2",
    "rank12-linear46-d17-b8-failure=0.2",
    "median-compact-d16-b8-failure=0.2-depth=7",
    "median-compact-d24-b8-failure=0.2-depth=13-certificate=True",
    "rank9-linear18-d33-b8--1..1-certificate=True-failure=0.2",
    "max-linear-max-d16-b8-failure=0.2",
    "max-tree-max-d13-b8-depth=5-certificate=True",
]
each_case = pytest.mark.parametrize(
    "case", telling(CASES.values(), [CASES[name] for name in (*BLOCKS, *TELLING)], ids=lambda case: case.name)
)
