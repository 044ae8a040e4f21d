"""The type of an entry of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from exporter.constructions.radix import Form
from exporter.ir.trace import LayerNames, Node
from exporter.planning.schedule import Failure
from exporter.problem.spec import Spec

Build = Callable[[Node, Sequence[int], Spec, Form, bool], "Statistics"]


@dataclass(frozen=True)
class Statistics:
    """The wanted order statistics in the order of the ranks, and the probability that they are wrong."""

    values: Node
    failure: Failure = field(default_factory=Failure)
    names: LayerNames = field(default_factory=LayerNames)


@dataclass(frozen=True)
class Idle:
    """Options that a construction does not read once `option` is given, and why."""

    option: str
    unread: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Claims:
    """The claims of a theorem: depth, exponent of the width, and the power k of the weights c d^k/eps; None: no claim."""

    depth: int | None = None
    exponent: float | None = None
    power: int | None = None


@dataclass(frozen=True)
class Construction:
    """One construction of the catalogue.

    `build` returns the formula for the input, the ranks, the spec, a comparison form, and the choice of index offsets.
    `takes`: the options that not all constructions have. `idle`: options that exclude each other.
    `cannot`: returns the reason why the construction cannot be built for (d, ranks), or None.
    `forms`: the comparison forms in order of preference. `form_first`: an earlier form in a wider dtype is better than a
    later form in a narrower dtype.
    `offsets`: index offsets make equal entries distinct if the dtype has bits for them. Without these bits, ties count
    against windows and capacities. All other constructions are right on ties.
    `op`: the operation that benchmarks measure.
    `counted`: a network that is too large to run can still be counted.
    `everywhere`: the bare network is within one step on every real input.
    `comparators`: the network consists of comparators (Max and Min), unless an option changes this.
    `dense_bits`: the number of bits at which a small dense chain is exact in float32.
    `uniform`: the construction is for independent entries, uniform in the domain, and is built only if it is named.
    `searched`: options and values that change depth or width (exporter.theory.frontier).
    `answers`: the operations for which this is the default construction.
    `shown`: the d of the small networks that the service's page shows.
    """

    name: str
    theorem: str
    summary: str
    build: Build
    cannot: Callable[[int, Sequence[int]], str | None] = lambda d, ranks: None
    forms: tuple[Form, ...] = ("pair",)
    _: KW_ONLY
    form_first: bool = False
    offsets: bool = False
    takes: tuple[str, ...] = ()
    idle: tuple[Idle, ...] = ()
    op: Literal["median", "max"] = "median"
    claims: Claims = Claims()
    counted: bool = False
    everywhere: bool = False
    comparators: bool = False
    dense_bits: int | None = None
    uniform: bool = False
    searched: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    answers: tuple[str, ...] = ()
    shown: tuple[int, ...] = (256, 257)
