"""The 0-1 principle: a network of comparators gives rank k of every input if it does so of every input of zeros and ones.

Inputs that no comparator has joined yet are independent. A component is a set of joined inputs; `States` lists the distinct
values that its live wires can have together, with the number of ones among its inputs. Where a comparator joins two
components, all pairs of their states are tried. Sorted halves of m have m + 1 states each, so a merge is checked on
(m + 1)^2 inputs; a network without such structure is checked on up to 2^d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exporter.prove.forms import Wire
from exporter.prove.graph import NotProvedError

Bits = npt.NDArray[np.uint8]
CHUNK = 1 << 20  # states that are tried at once
MOST = 1 << 33  # states times wires in one join, beyond which a proof takes hours


@dataclass(eq=False)
class States:
    """Distinct values of the live wires: a packed column each, the ones of every state, and an input that leads there."""

    columns: dict[int, Bits]
    ones: npt.NDArray[np.int64]
    inputs: Bits

    def __len__(self) -> int:
        return len(self.ones)


@dataclass(eq=False)
class Component:
    parts: tuple[int, ...]
    size: int
    steps: list[int] = field(default_factory=list)


def zero_one(
    wires: Sequence[Wire], wanted: dict[int, int], d: int, progress: Callable[[str], None] = lambda text: None
) -> tuple[int, npt.NDArray[np.uint8] | None]:
    """(inputs tried, None) if every wanted wire is the entry of its rank, else an input where it is not."""
    needed = _needed(wires, wanted)
    home: dict[int, int] = {}
    components: list[Component] = []
    root: list[int] = []
    last: dict[int, int] = dict.fromkeys(wanted, len(wires))
    for w in needed:
        wire = wires[w]
        if wire.kind == "entry":
            home[w] = len(components)
            components.append(Component((), 1, [w]))
            root.append(len(root))
            continue
        last[wire.a], last[wire.b] = max(last.get(wire.a, 0), w), max(last.get(wire.b, 0), w)
        a, b = _root(root, home[wire.a]), _root(root, home[wire.b])
        if a != b:
            root[a] = root[b] = len(components)
            root.append(len(root))
            components.append(Component((a, b), components[a].size + components[b].size))
            a = len(components) - 1
        components[a].steps.append(w)
        home[w] = a
    ends = {_root(root, home[w]) for w in wanted}
    if any(components[c].size != d for c in ends):
        raise NotProvedError("an output does not depend on every entry")
    states: dict[int, States] = {}
    tried = 0
    joins = sum(bool(c.parts) for c in components)
    for n, component in enumerate(components):
        if not component.parts:
            w = component.steps[0]
            one = np.zeros((2, (d + 7) // 8), np.uint8)
            one[1, wires[w].a // 8] = 1 << (wires[w].a % 8)
            states[n] = States({w: np.packbits(np.array([0, 1], np.uint8))}, np.array([0, 1]), one)
            continue
        progress(f"join {n - (len(components) - joins) + 1} of {joins}")
        left, right = (states.pop(p) for p in component.parts)
        live = {w for p in (left, right) for w in p.columns} | set(component.steps)
        if len(left) * len(right) * len(live) > MOST:
            raise NotProvedError(
                f"{len(left) * len(right)} inputs of zeros and ones on {len(live)} wires are more than 2^33 together"
            )
        tried += len(left) * len(right)
        check = wanted if n in ends else {}
        found = _joined(wires, component, left, right, last, check)
        if not isinstance(found, States):
            return tried, np.unpackbits(found, bitorder="little")[:d]
        states[n] = found
    if d == 1:
        return 2, None
    return tried, None


def _needed(wires: Sequence[Wire], wanted: dict[int, int]) -> list[int]:
    found, open_ = set(wanted), list(wanted)
    while open_:
        wire = wires[open_.pop()]
        if wire.kind == "pos":
            raise NotProvedError("a value is relu(a - b) of two compared values, and not one of them")
        for w in () if wire.kind == "entry" else (wire.a, wire.b):
            if w not in found:
                found.add(w)
                open_.append(w)
    return sorted(found)


def _root(root: list[int], n: int) -> int:
    while root[n] != n:
        root[n] = root[root[n]]
        n = root[n]
    return n


def _joined(
    wires: Sequence[Wire],
    component: Component,
    left: States,
    right: States,
    last: dict[int, int],
    check: dict[int, int],
) -> States | Bits:
    """The states after the steps of a component, or an input whose outputs are wrong. `last`: the last reader of a wire."""
    kept: list[States] = []
    keep = {w for w in (*left.columns, *right.columns, *component.steps) if last.get(w, 0) > component.steps[-1]}
    step = max(1, CHUNK // len(right))
    for start in range(0, len(left), step):
        rows = slice(start, min(start + step, len(left)))
        n = rows.stop - rows.start
        columns = {
            w: np.packbits(np.repeat(np.unpackbits(c, count=len(left))[rows], len(right)))
            for w, c in left.columns.items()
        }
        for w, c in right.columns.items():
            columns[w] = np.packbits(np.tile(np.unpackbits(c, count=len(right)), n))
        ones = (left.ones[rows, None] + right.ones).ravel()
        for w in component.steps:
            wire = wires[w]
            a, b = columns[wire.a], columns[wire.b]
            columns[w] = a | b if wire.kind == "max" else a & b
            for old in (wire.a, wire.b):
                if last[old] == w:
                    columns.pop(old, None)
        for w, rank in check.items():
            right_bits = np.packbits(ones >= component.size - rank + 1)
            bad = columns[w] ^ right_bits
            if bad.any():
                row = int(np.flatnonzero(np.unpackbits(bad, count=len(ones)))[0])
                return np.asarray(left.inputs[start + row // len(right)] | right.inputs[row % len(right)])
        if check:
            continue  # nothing follows
        index = _distinct([columns[w] for w in sorted(keep)], ones)
        inputs = left.inputs[start + index // len(right)] | right.inputs[index % len(right)]
        taken = {w: np.packbits(np.unpackbits(columns[w], count=len(ones))[index]) for w in keep}
        kept.append(States(taken, ones[index], inputs))
    if len(kept) == 1 or check:
        return kept[0] if kept else States({}, np.zeros(0, np.int64), np.zeros((0, 1), np.uint8))
    lengths = [len(s) for s in kept]
    columns = {
        w: np.packbits(
            np.concatenate([np.unpackbits(s.columns[w], count=n) for s, n in zip(kept, lengths, strict=True)])
        )
        for w in keep
    }
    ones, inputs = np.concatenate([s.ones for s in kept]), np.concatenate([s.inputs for s in kept])
    index = _distinct([columns[w] for w in sorted(keep)], ones)
    taken = {w: np.packbits(np.unpackbits(c, count=len(ones))[index]) for w, c in columns.items()}
    return States(taken, ones[index], inputs[index])


def _distinct(columns: list[Bits], ones: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """The first row of every distinct state."""
    n = len(ones)
    blocks = [
        np.packbits(np.stack([np.unpackbits(c, count=n) for c in columns[i : i + 8]]), axis=0)[0]
        for i in range(0, len(columns), 8)
    ]
    table = np.column_stack([*blocks, np.ascontiguousarray(ones).view(np.uint8).reshape(n, 8)])
    table = np.ascontiguousarray(table)
    return np.asarray(np.unique(table.view(np.dtype((np.void, table.shape[1]))).ravel(), return_index=True)[1])
