"""What the catalogue says of a construction."""

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
    """The wanted order statistics, in the order of the ranks, and how often they may be wrong on random input."""

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
    """What a theorem says: the depth, the exponent of the width, the power of d in the weights c d^k/eps; None: nothing."""

    depth: int | None = None
    exponent: float | None = None
    power: int | None = None


@dataclass(frozen=True)
class Construction:
    """One entry of the catalogue: all that is known of a construction stands here.

    `build` makes of the input, the ranks and the spec a formula, in a form of comparison, with index offsets or without.
    `takes` are the options that this construction reads and others may not; `idle` says which of them exclude each other.
    `cannot` says why it cannot be built for (d, ranks), or returns None. `forms` are its comparison forms in the order of
    preference; with `form_first` an earlier form in a wider dtype is preferred to a later one in a narrower dtype.
    `offsets`: it tells equal entries apart by index offsets, where the dtype has bits for them; without, ties count against
    its windows and capacities. Every other construction is as right on ties as without. `op` is what it is measured on.
    `counted`: where it is too large to run it can still be counted. `everywhere`: the bare network is within one step on
    every real input. `comparators`: it is made of comparators (without options that say otherwise), which are Max and Min.
    `dense_bits`: a small dense chain of it is exact in float32 at so many bits. `uniform`: it is made for entries that are
    independent and uniform in the domain, and promises nothing of others; it is built when it is named.
    `searched`: options, and their values, that move it on the plane of depth and width (exporter.theory.frontier).
    `answers`: the operations that it is taken for where no construction is named. `shown`: the d at which a small network of
    it comes with the service's page.
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
