"""Order statistics on encrypted whole numbers: comparator networks as functions for Zama's concrete-python.

    from exporter.fhe import compiled
    circuit = compiled(9, bits=4)                       # the median of 9 encrypted numbers 0..15
    circuit.encrypt_run_decrypt([3, 1, 4, 1, 5, 9, 2, 6, 5])

Additions of encrypted numbers are cheap. Nearly all time goes to table lookups (bootstraps). A comparator needs one lookup,
r = max(a - b, 0), for both of its ends: the minimum is a - r and the maximum is b + r. So the network with the fewest
comparators is the cheapest. docs/encryption.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from exporter.constructions.batcher import known, merge_exchange, pruned
from exporter.constructions.known_networks import comparators
from exporter.errors import UserError

Pair = tuple[int, int]
Function = Callable[[Any], Any]

# Medians with the fewest comparators: Paeth, Graphics Gems (1990), and Devillard, Fast median search (1998).
FEWEST_MEDIANS = {
    5: "0:1 3:4 0:3 1:4 1:2 2:3 1:2",
    7: "0:5 0:3 1:6 2:4 0:1 3:5 2:6 2:3 3:6 4:5 1:4 1:3 3:4",
    9: "1:2 4:5 7:8 0:1 3:4 6:7 1:2 4:5 7:8 0:3 5:8 4:7 3:6 1:4 2:5 4:7 4:2 6:4 4:2",
}


def fewest_comparators(d: int, rank: int) -> list[Pair]:
    """The listed network with the fewest comparators that puts rank `rank` of d numbers on wire rank - 1.

    A pair (i, j) puts the smaller number on wire i and the larger number on wire j.
    """
    if not 1 <= rank <= d:
        raise UserError(f"rank {rank} of {d} numbers: ranks are 1 to {d}")
    candidates = [merge_exchange(d), *known(d, {rank - 1})]
    if d in FEWEST_MEDIANS and 2 * rank == d + 1:
        candidates.append([np.array([pair]) for pair in comparators(FEWEST_MEDIANS[d])])
    networks = [pruned(stages, {rank - 1}, d)[0] for stages in candidates]
    best = min(networks, key=lambda stages: sum(map(len, stages)))
    return [(int(i), int(j)) for stage in best for i, j in stage]


def order_statistic(d: int, rank: int | None = None, bits: int | None = None) -> Function:
    """A function of d whole numbers that returns the given rank (default: the lower median), one lookup per comparator.

    The function accepts numpy arrays and concrete-python's encrypted tensors. The compiler of concrete-python derives the
    range of every value from sample inputs, and samples can miss a range. With `bits` the function states the ranges: every
    wire carries numbers 0..2^bits - 1, and differences are made non-negative before the lookup.
    """
    rank = (d + 1) // 2 if rank is None else rank
    pairs = fewest_comparators(d, rank)
    top = 0 if bits is None else 2**bits - 1
    hint = None if bits is None else concrete().hint

    def upto(value: Any, largest: int) -> Any:
        return value if hint is None else hint(value, can_store=largest)

    def select(x: Any) -> Any:
        wires = [x[i] for i in range(d)]
        for i, j in pairs:
            a, b = wires[i], wires[j]
            excess = upto(np.maximum(upto(a - b + top, 2 * top) - top, 0), top)
            wires[i], wires[j] = upto(a - excess, top), upto(b + excess, top)
        return wires[rank - 1]

    return select


def concrete() -> Any:
    try:
        from concrete import fhe  # noqa: PLC0415
    except ImportError as error:
        raise UserError(
            f"encrypted networks need concrete-python ({error}). It needs Python 3.11 or 3.12 and numpy below 2, so give it "
            "an environment of its own: make fhe, or pip install -r tests/fhe/requirements.txt"
        ) from None
    return fhe


def compiled(
    d: int, *, bits: int, rank: int | None = None, function: Callable[..., Function] = order_statistic, **settings: Any
) -> Any:
    """The circuit of concrete-python for d encrypted numbers 0..2^bits - 1; `settings` go to its Configuration."""
    if not 1 <= bits <= 8:
        raise UserError(f"bits={bits}: encrypted lookups take numbers of 1 to 8 bits here")
    fhe = concrete()
    rng, top = np.random.default_rng(0), 2**bits - 1
    made = function(d, rank, bits) if function is order_statistic else function(d, rank)
    # the compiler derives ranges from these inputs: random inputs, and inputs with the extreme differences
    samples = [np.zeros(d, np.int64), np.full(d, top)]
    samples += [top * ((np.arange(d) + i) % d < n) for n in range(1, d) for i in range(d)]
    samples += list(top * rng.integers(0, 2, (300, d))) + list(rng.integers(0, top + 1, (300, d)))
    return fhe.Compiler(made, {"x": "encrypted"}).compile(samples, fhe.Configuration(**settings))
