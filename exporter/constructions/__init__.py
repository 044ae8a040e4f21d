"""The catalogue of constructions: one module per theorem, one entry here.

A construction is a function from the normalised input (entries in [0, 1], on a grid of step δ) and the wanted ranks to the
entries of those ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from exporter.constructions.batcher import batcher
from exporter.constructions.depth3 import depth3
from exporter.linear import Scalar
from exporter.trace import Node

Form = Literal["pair", "saturating"]


@dataclass(frozen=True)
class Choice:
    """What a construction may read besides the input and the ranks."""

    delta: Scalar
    ties: bool = True
    form: Form = "pair"
    seed: int = 0


@dataclass(frozen=True)
class Statistics:
    """The wanted order statistics, in the order of the ranks, and how often they may be wrong on random input."""

    values: Node
    failure_bound: float = 0.0


@dataclass(frozen=True)
class Construction:
    """One entry of the catalogue; `cannot` says why it cannot be built for (d, ranks), or returns None."""

    name: str
    theorem: str
    summary: str
    build: Callable[[Node, Sequence[int], Choice], Statistics]
    cannot: Callable[[int, Sequence[int]], str | None] = lambda d, ranks: None
    forms: tuple[Form, ...] = ("pair",)


MAX_PAIRS = 8192


def _no_depth3(d: int, ranks: Sequence[int]) -> str | None:
    if d > MAX_PAIRS:
        return f"all pairs of {d} entries are {2 * d * d:.2g} neurons; it is built up to d = {MAX_PAIRS}"
    if len(ranks) * d > MAX_PAIRS**2 // 4:
        return f"{len(ranks)} ranks of {d} entries are {4 * len(ranks) * d:.2g} neurons in the second layer"
    return None


def _no_batcher(d: int, ranks: Sequence[int]) -> str | None:
    return f"a sorting network of {d} wires is built up to d = {1 << 17}" if d > 1 << 17 else None


CONSTRUCTIONS: dict[str, Construction] = {
    c.name: c
    for c in (
        Construction(
            "depth3",
            "theorem:depththreeconstruction",
            "all pairs compared at once: depth 3, width about 2 d^2; exact on every grid input",
            lambda x, ranks, choice: Statistics(depth3(x, ranks, choice.delta, choice.ties)),
            _no_depth3,
        ),
        Construction(
            "batcher",
            "Batcher's merge exchange",
            "a sorting network: depth about log2(d)^2 / 2, width about 1.5 d; exact on every input",
            lambda x, ranks, choice: Statistics(batcher(x, ranks)),
            _no_batcher,
        ),
    )
}
