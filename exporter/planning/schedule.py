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

The parts are defined here; every schedule has a file with its planner. The paper's exponents fit no d that fits in a
computer, so a planner takes a goal (d, the ranks, a failure probability) and searches for the narrowest network whose
failure it can prove. How wide the network of a schedule is, `Planned.built` in `exporter.constructions` counts; a search
tries too many schedules for that, so it knows what fits in a width by a formula, which tests hold to the networks.

Every schedule lists its bad events with their probabilities. `failure_bound` is their sum, and `failure_law` says what the
probability is over:

    seeds           Every round has its own permutation, drawn by the seed. The bound holds for every fixed input, over the
                    seeds. On random inputs it holds on average over the seeds, not for each: after round 1 the live
                    entries stand mostly where round 1 did not sample, and a file's blocks may not be even there.
    file            All rounds share one permutation, so a seed only renames the inputs. The bound holds for every fixed
                    input over the seeds, and for every single file over inputs in random order.
    uniform         Nothing is drawn. The bound holds over inputs whose entries are independent and uniform in the domain.
    uniform-seeds   The same, on average over the seeds.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from math import fsum, isqrt
from typing import Literal, NamedTuple

from exporter.planning.reproducible import outward

FailureLaw = Literal["seeds", "file", "uniform", "uniform-seeds"]


class Failure(NamedTuple):
    """How often an answer may be wrong, and over what: nothing can fail by default.

    `mse` bounds the mean squared error on uniform grid inputs, in units of the squared range.
    """

    bound: float = 0.0
    law: FailureLaw | None = None
    mse: float = 0.0


@dataclass(frozen=True)
class Event:
    """One way to fail and a bound of its probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class FirstSample:
    """The first `size` entries; the sample's ranks `lower` and `upper` become the first interval.

    lower = 0 and upper = size + 1 mean that the interval has no end on that side.
    """

    size: int
    lower: int
    upper: int


@dataclass(frozen=True)
class BlockSample:
    """`entries` slots for live entries in each of `blocks` blocks of `block` positions, one more in the first `more`."""

    blocks: int
    block: int
    entries: int
    more: int = field(default=0, kw_only=True)

    @property
    def size(self) -> int:
        """Slots of the sample, filled or empty."""
        return self.blocks * self.entries + self.more


@dataclass(frozen=True)
class HardRound(BlockSample):
    """The first `entries` live entries of each of `blocks` blocks of `block` positions.

    The window is floor(r z / n) - below .. ceil(r z / n) + above for a target of rank r among n live entries,
    z = blocks * entries. It fails when a block holds too few live entries or the window misses a target.
    """

    below: int
    above: int


@dataclass(frozen=True)
class SoftRound(BlockSample):
    """Up to `entries` live entries of every block; the blocks cover all positions.

    With u live entries left out, the target of rank r among the live has a rank in [r - u, r] among those taken,
    so the window never misses it and at most gap + 1 + 2u entries survive. A soft round cannot fail.
    """


@dataclass(frozen=True)
class PivotRound(SoftRound):
    """A soft round whose interval is found by counting: it cannot miss a target either.

    Every `gap`-th of its slots in the order of their values, the empty ones lowest, is a pivot, from a place that the seed
    draws. Every entry is compared with every `stride`-th pivot, and then, if that is not each of them, with those in the
    bracket that was found.
    """

    gap: int
    stride: int

    def pivots(self, shift: int = 0) -> tuple[int, ...]:
        """Ranks of the slots, for 0 <= shift < gap; 0 and size + 1 are the ends that the interval has."""
        inner = range(1 + shift, 1 + shift + self.size, self.gap)
        return 0, *(min(rank, self.size) for rank in inner), self.size + 1


@dataclass(frozen=True)
class HashEnding:
    """`functions` of the hash functions of Definition F.7 modulo `prime`, on at most `capacity` entries.

    Two positions collide under at most digits - 1 of the functions a = 1 .. prime - 1, so one of more than
    (digits - 1) capacity (capacity - 1) / 2 functions is free of collisions, wherever the entries stand.
    """

    prime: int
    functions: int
    capacity: int

    @staticmethod
    def within(d: int, slots: int, neurons: int) -> HashEnding:
        """As many functions as `neurons` have room for, modulo a prime of at most `slots`."""
        prime = previous_prime(max(2, min(slots, isqrt(max(4, neurons)) + 1, d)))
        functions = max(1, min(prime - 1, neurons // prime))
        return HashEnding(prime, functions, hash_capacity(d, prime, functions))


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """What all schedules have: the ranks, and the proof."""

    d: int
    low: int
    high: int
    events: tuple[Event, ...]

    @property
    def outputs(self) -> int:
        """How many ranks are wanted."""
        return self.high - self.low + 1

    @property
    def failure_bound(self) -> float:
        """Union bound over all events, as it is stated: rounded up to a few digits; never above 1."""
        return outward(fsum(event.probability for event in self.events))

    @property
    def failure_law(self) -> FailureLaw:
        """What the failure bound is a probability over."""
        return "file"


def previous_prime(n: int) -> int:
    """The largest prime <= n (n >= 2)."""
    while any(n % f == 0 for f in range(2, int(n**0.5) + 1)):
        n -= 1
    return n


def digits(d: int, prime: int) -> int:
    """Digits of the positions 0 .. d - 1 in base `prime` (Definition F.6, which counts from 1)."""
    count, reach = 1, prime
    while reach < d:
        count, reach = count + 1, reach * prime
    return count


def hash_capacity(d: int, prime: int, functions: int) -> int:
    """The largest number of entries that `functions` hash functions provably separate (Lemma F.9).

    h_a(i) - h_a(j) is a times a polynomial in a of degree digits - 1 at most, with no more roots a = 1 .. prime - 1, and
    not zero as i and j differ in a digit. One digit: every function separates all.
    """
    roots = digits(d, prime) - 1
    if roots == 0:
        return d
    capacity = 1
    while roots * (capacity + 1) * capacity // 2 < functions:
        capacity += 1
    return capacity
