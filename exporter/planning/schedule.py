"""Schedules: the numbers of a construction, chosen for a finite d and proved by exact tails.

    Schedule
    ├── Depth5Schedule      blocks and the window of ranks kept in each
    ├── LinearSchedule      linear46: FirstSample, HardRound, SoftRound ..., HashEnding
    ├── CompactSchedule     FirstSample with pivots, SoftRound ..., BlockSample
    ├── WindowSchedule      windows for uniform inputs: window5, window6
    ├── Cells               a window cut into cells, with a vote: window4
    ├── VoteSchedule        maximum of uniform inputs: a constant and hash functions
    ├── MaxSchedule         Algorithms 1 and 2: FirstSample, SoftRound, HashEnding
    └── TreeSchedule        exact maximum: levels of block maxima

The parts are defined here. Each schedule has a file with its planner. The paper's exponents need a d that no computer can
hold. So a planner takes a goal (d, the ranks, a failure probability) and searches for the narrowest network whose failure it
can prove. `Planned.built` in `exporter.constructions` builds the network of a schedule and counts its width. A search tries
too many schedules to build each, so it computes widths by formulas. Tests compare the formulas with networks.

Every schedule lists its bad events with their probabilities. `failure_bound` is the sum. `failure_law` says what is random:

    seeds           Every round has its own permutation, drawn by the seed. The bound holds for every fixed input, over the
                    seeds. On random inputs it holds on average over the seeds, but not for each seed: after round 1 most
                    live entries stand where round 1 did not sample, and one seed may spread these places unevenly.
    file            All rounds share one permutation, so a seed only renames the inputs. The bound holds for every fixed
                    input over the seeds, and for every single file over inputs in random order.
    uniform         The network has no random choices. The bound holds over inputs whose entries are independent and uniform
                    in the domain.
    uniform-seeds   As uniform, but on average over the seeds.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from math import fsum, isqrt
from typing import Literal, NamedTuple

from exporter.planning.reproducible import outward

FailureLaw = Literal["seeds", "file", "uniform", "uniform-seeds"]


class Failure(NamedTuple):
    """The probability of a wrong answer and its law (see above). By default nothing can fail.

    `mse` bounds the mean squared error on uniform grid inputs, in units of the squared range.
    """

    bound: float = 0.0
    law: FailureLaw | None = None
    mse: float = 0.0


@dataclass(frozen=True)
class Event:
    """One way to fail, and an upper bound of its probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class FirstSample:
    """The first `size` entries as a sample. Its entries of ranks `lower` and `upper` are the ends of the first interval.

    lower = 0 or upper = size + 1 means that the interval has no end on this side.
    """

    size: int
    lower: int
    upper: int


@dataclass(frozen=True)
class BlockSample:
    """`blocks` blocks of `block` positions, each with `entries` slots for live entries; the first `more` have one more."""

    blocks: int
    block: int
    entries: int
    more: int = field(default=0, kw_only=True)

    @property
    def size(self) -> int:
        """The number of slots of the sample, filled or empty."""
        return self.blocks * self.entries + self.more


@dataclass(frozen=True)
class HardRound(BlockSample):
    """The first `entries` live entries of each of `blocks` blocks of `block` positions.

    The window is floor(r z / n) - below .. ceil(r z / n) + above for a target of rank r among n live entries,
    z = blocks * entries. The round fails if a block has too few live entries or if the window misses a target.
    """

    below: int
    above: int


@dataclass(frozen=True)
class SoftRound(BlockSample):
    """Up to `entries` live entries of every block. The blocks cover all positions.

    Suppose that u live entries are left out. A target of rank r among the live entries then has a rank in [r - u, r] among
    the taken entries, so the window never misses it. At most gap + 1 + 2u entries survive. A soft round cannot fail.
    """


@dataclass(frozen=True)
class PivotRound(SoftRound):
    """A soft round that finds its interval by counting. It cannot miss a target either.

    The slots are sorted by value, with empty slots lowest. Every `gap`-th slot is a pivot, from a start that the seed draws.
    Every entry is compared with every `stride`-th pivot. If the stride is above 1, the entries are then compared with the
    pivots in the bracket that was found.
    """

    gap: int
    stride: int

    def pivots(self, shift: int = 0) -> tuple[int, ...]:
        """The pivots as ranks of the slots, for 0 <= shift < gap. 0 and size + 1 stand for the old ends of the interval."""
        inner = range(1 + shift, 1 + shift + self.size, self.gap)
        return 0, *(min(rank, self.size) for rank in inner), self.size + 1


@dataclass(frozen=True)
class HashEnding:
    """Hash functions modulo `prime` (Definition F.7) that separate any `capacity` entries.

    Two positions collide under at most digits - 1 of the functions a = 1 .. prime - 1. So among more than
    (digits - 1) capacity (capacity - 1) / 2 functions, one has no collision, for any positions of the entries.
    """

    prime: int
    functions: int
    capacity: int

    @staticmethod
    def within(d: int, slots: int, neurons: int) -> HashEnding:
        """As many functions as fit into `neurons`, modulo a prime of at most `slots`."""
        prime = previous_prime(max(2, min(slots, isqrt(max(4, neurons)) + 1, d)))
        functions = max(1, min(prime - 1, neurons // prime))
        return HashEnding(prime, functions, hash_capacity(d, prime, functions))


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """The common part of all schedules: the ranks and the failure events."""

    d: int
    low: int
    high: int
    events: tuple[Event, ...]
    failure_law: FailureLaw = "file"

    @property
    def outputs(self) -> int:
        """The number of wanted ranks."""
        return self.high - self.low + 1

    @property
    def failure_bound(self) -> float:
        """The union bound over all events, rounded up to a few digits, and at most 1."""
        return outward(fsum(event.probability for event in self.events))


def previous_prime(n: int) -> int:
    """The largest prime <= n (n >= 2)."""
    while any(n % f == 0 for f in range(2, int(n**0.5) + 1)):
        n -= 1
    return n


def digits(d: int, prime: int) -> int:
    """The number of digits of the positions 0 .. d - 1 in base `prime` (Definition F.6, which counts from 1)."""
    count, reach = 1, prime
    while reach < d:
        count, reach = count + 1, reach * prime
    return count


def hash_capacity(d: int, prime: int, functions: int) -> int:
    """The largest number of entries that `functions` hash functions provably separate (Lemma F.9).

    h_a(i) - h_a(j) is a times a polynomial in a of degree at most digits - 1. The polynomial is not zero, because i and j
    differ in a digit, so it has at most digits - 1 roots. With one digit every function separates all positions.
    """
    roots = digits(d, prime) - 1
    if roots == 0:
        return d
    capacity = 1
    while roots * (capacity + 1) * capacity // 2 < functions:
        capacity += 1
    return capacity
