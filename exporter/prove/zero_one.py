"""The 0-1 principle: a network of comparators gives rank k of every input if it does so of every input of zeros and ones.

Inputs that no comparator has joined yet are independent. A component is a set of joined inputs; `States` lists the distinct
values that its live wires can have together, with the number of ones among its inputs. Where a comparator joins two
components, all pairs of their states are tried. Sorted halves of m have m + 1 states each, so a merge is checked on
(m + 1)^2 inputs; a network without such structure is checked on up to 2^d.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exporter.prove.forms import Wire
from exporter.prove.graph import NotProvedError

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
CHUNK = 1 << 24  # states times wires that are tried at once
MOST = 1 << 33  # states times wires in one join, beyond which a proof takes hours


@dataclass(frozen=True, eq=False)
class States:
    """Values of the live wires, the ones among the inputs of every state, and an input that leads there, packed."""

    columns: dict[int, Bools]
    ones: Ints
    inputs: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.ones)

    def distinct(self) -> States:
        table = np.packbits(np.stack([*self.columns.values()], axis=1), axis=1)
        table = np.column_stack([table, self.ones.view(np.uint8).reshape(len(self), 8)])
        rows = np.ascontiguousarray(table).view(np.dtype((np.void, table.shape[1]))).ravel()
        kept = np.unique(rows, return_index=True)[1]
        return States({w: c[kept] for w, c in self.columns.items()}, self.ones[kept], self.inputs[kept])


@dataclass(eq=False)
class Component:
    parts: tuple[int, ...]
    size: int
    steps: list[int] = field(default_factory=list)


def zero_one(wires: Sequence[Wire], wanted: dict[int, int], d: int) -> tuple[int, npt.NDArray[np.uint8] | None]:
    """(inputs tried, None) if every wanted wire is the entry of its rank, else an input where it is not."""
    components, last = _components(wires, wanted, d)
    states: dict[int, States] = {}
    tried = 0
    for n, component in enumerate(components):
        if not component.parts:
            w = component.steps[0]
            inputs = np.zeros((2, (d + 7) // 8), np.uint8)
            inputs[1, wires[w].a // 8] = 1 << (wires[w].a % 8)
            states[n] = States({w: np.array([False, True])}, np.array([0, 1]), inputs)
            continue
        left, right = (states.pop(p) for p in component.parts)
        live = len(left.columns) + len(right.columns) + len(component.steps)
        if len(left) * len(right) * live > MOST:
            raise NotProvedError(
                f"{len(left) * len(right)} inputs of zeros and ones on {live} wires are more than 2^33 together"
            )
        tried += len(left) * len(right)
        runs = _run(wires, component, left, right, last)
        if n < len(components) - 1:
            states[n] = _joined(run.distinct() for run in runs)
            continue
        for run in runs:
            for w, rank in wanted.items():
                bad = np.flatnonzero(run.columns[w] != (run.ones > d - rank))
                if len(bad):
                    return tried, np.unpackbits(run.inputs[bad[0]], bitorder="little")[:d]
    return max(tried, 2), None


def _components(wires: Sequence[Wire], wanted: dict[int, int], d: int) -> tuple[list[Component], dict[int, int]]:
    """Sets of joined inputs with their comparators, the last one with all inputs; and the last reader of every wire."""
    last = dict.fromkeys(wanted, len(wires))
    for w in range(max(wanted), -1, -1):
        if w in last and wires[w].kind != "entry":
            if wires[w].kind == "pos":
                raise NotProvedError("a value is relu(a - b) of two compared values, and not one of them")
            for read in (wires[w].a, wires[w].b):
                last.setdefault(read, w)
    home: dict[int, int] = {}
    components: list[Component] = []
    root: list[int] = []
    for w in sorted(last):
        parts = () if wires[w].kind == "entry" else {_root(root, home[wires[w].a]), _root(root, home[wires[w].b])}
        if len(parts) != 1:
            for part in parts:
                root[part] = len(components)
            components.append(Component(tuple(parts), sum(components[part].size for part in parts) or 1))
            root.append(len(root))
        home[w] = root[-1] if len(parts) != 1 else parts.pop()
        components[home[w]].steps.append(w)
    if any(components[_root(root, home[w])].size != d for w in wanted):
        raise NotProvedError("an output does not depend on every entry")
    return components, last


def _root(root: list[int], n: int) -> int:
    while root[n] != n:
        root[n] = root[root[n]]
        n = root[n]
    return n


def _run(
    wires: Sequence[Wire], component: Component, left: States, right: States, last: dict[int, int]
) -> Iterator[States]:
    """The states after the steps of a component, for all pairs of states of its parts."""
    step = max(1, CHUNK // (len(right) * (len(left.columns) + len(right.columns))))
    for start in range(0, len(left), step):
        rows, others = (grid.ravel() for grid in np.mgrid[start : min(start + step, len(left)), : len(right)])
        columns = {w: c[rows] for w, c in left.columns.items()} | {w: c[others] for w, c in right.columns.items()}
        for w in component.steps:
            wire = wires[w]
            a, b = columns[wire.a], columns[wire.b]
            columns[w] = a | b if wire.kind == "max" else a & b
            for old in (wire.a, wire.b):
                if last[old] == w:
                    columns.pop(old, None)
        yield States(columns, left.ones[rows] + right.ones[others], left.inputs[rows] | right.inputs[others])


def _joined(runs: Iterable[States]) -> States:
    kept = list(runs)
    columns = {w: np.concatenate([run.columns[w] for run in kept]) for w in kept[0].columns}
    ones, inputs = (np.concatenate(values) for values in zip(*((run.ones, run.inputs) for run in kept), strict=True))
    return States(columns, ones, inputs).distinct()
