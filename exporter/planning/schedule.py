"""Schedules: the numbers of a construction, chosen for a finite d and proved by exact tails.

    Schedule
    ├── Depth5Schedule      blocks and the window of ranks kept in each
    ├── LinearSchedule      linear46 and linear22: FirstSample, HardRound, SoftRound ..., HashEnding
    ├── CompactSchedule     FirstSample with pivots, SoftRound ..., BlockEnding
    ├── MaxSchedule         Algorithms 1 and 2: FirstSample, SoftRound, HashEnding
    └── TreeSchedule        exact maximum: levels of block maxima

The paper's exponents fit no d that fits in a computer, so the planners take d, the ranks and a failure probability
and search for the smallest network whose failure they can prove. Every schedule lists its bad events with their
probabilities; `failure_bound` is their sum, and `failure_law` says what it is a probability over:

    seeds   every round has a permutation of its own, and the seed draws them: the bound holds for every fixed input, over
            the seeds. On random inputs it holds for the seeds on average, not for each: after round 1 the live entries
            stand mostly where round 1 did not sample, and the file's own blocks may or may not be even there.
    file    all rounds share one permutation, and a seed only renames the inputs: the bound holds for every fixed input
            over the seeds, and just as well for every single file over inputs in random order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import Literal, NamedTuple

from exporter.errors import UserError
from exporter.planning.portable import outward

Blocks = Literal["paper", "lean"]
Objective = Literal["width", "size"]
FailureLaw = Literal["seeds", "file"]


class Failure(NamedTuple):
    """How often an answer may be wrong, and over what: nothing can fail by default."""

    bound: float = 0.0
    law: FailureLaw | None = None


@dataclass(frozen=True)
class Event:
    """One way to fail and a bound of its probability."""

    name: str
    probability: float


@dataclass(frozen=True)
class Layer:
    """Neurons of one hidden layer, with the module of the paper it belongs to."""

    module: str
    width: int


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
    """`entries` slots for live entries in each of `blocks` blocks of `block` positions."""

    blocks: int
    block: int
    entries: int

    @property
    def size(self) -> int:
        """Slots of the sample, filled or empty."""
        return self.blocks * self.entries


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
class HashEnding:
    """`functions` of the hash functions of `const:vectorized_hashing` modulo `prime`, on at most `capacity` entries.

    Two positions collide under at most digits - 1 of the functions a = 1 .. prime - 1, so one of more than
    (digits - 1) capacity (capacity - 1) / 2 functions is free of collisions, wherever the entries stand.
    """

    prime: int
    functions: int
    capacity: int


@dataclass(frozen=True)
class BlockEnding(BlockSample):
    """All survivors, at most `entries` of them in each block, compared in all pairs."""


@dataclass(frozen=True)
class Schedule:
    """What all schedules have: the task, the proof and the width model (checked against the built network)."""

    d: int
    low: int
    high: int
    events: tuple[Event, ...]
    layers: tuple[Layer, ...]

    @property
    def failure_bound(self) -> float:
        """Union bound over all events, as it is stated: rounded up to a few digits; never above 1."""
        return outward(fsum(event.probability for event in self.events))

    @property
    def failure_law(self) -> FailureLaw:
        """What the failure bound is a probability over."""
        return "file"

    @property
    def width(self) -> int:
        """Neurons of the largest hidden layer."""
        return max(layer.width for layer in self.layers)

    @property
    def size(self) -> int:
        """All hidden neurons."""
        return sum(layer.width for layer in self.layers)

    @property
    def depth(self) -> int:
        """Hidden layers plus one, as the paper counts."""
        return len(self.layers) + 1


@dataclass(frozen=True)
class Depth5Schedule(Schedule):
    """`alg:depth5medianComp`: blocks of the given sizes; from each the ranks first .. last (all where it is shorter)."""

    blocks: Blocks
    sizes: tuple[int, ...]
    windows: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LinearSchedule(Schedule):
    """`alg:medianFindingFunctionLinear` and its 21-layer form."""

    family: Literal["linear46", "linear22"]
    blocks: Blocks
    sample: FirstSample
    hard: tuple[HardRound, ...]
    soft: tuple[SoftRound, ...]
    ending: HashEnding

    @property
    def rounds(self) -> tuple[HardRound | SoftRound, ...]:
        """Rounds 2 and later."""
        return (*self.hard, *self.soft)

    @property
    def failure_law(self) -> FailureLaw:
        return "seeds"


@dataclass(frozen=True)
class CompactSchedule(Schedule):
    """Sample, pivots (ranks of the sample, the two outermost first and last), soft rounds, block ending."""

    sample: FirstSample
    pivots: tuple[int, ...]
    soft: tuple[SoftRound, ...]
    ending: BlockEnding

    @property
    def failure_law(self) -> FailureLaw:
        return "seeds" if self.soft else "file"


@dataclass(frozen=True)
class MaxSchedule(Schedule):
    """`alg:informalAlgoMax` and `alg:sparseToMaximumFunction`: two sparsification rounds, then hashing."""

    sample: FirstSample
    soft: SoftRound
    ending: HashEnding


@dataclass(frozen=True)
class TreeSchedule(Schedule):
    """Exact maximum: group sizes from the inputs up; a group of 2 costs one layer, a larger one two."""

    groups: tuple[int, ...]


def check_task(d: int, low: int, high: int, failure: float) -> None:
    """Refuse what no planner can do, in the user's words."""
    if d < 1:
        raise UserError(f"d = {d}: a network needs at least one input")
    if not 1 <= low <= high <= d:
        raise UserError(f"ranks {low}..{high} do not lie in 1..{d}")
    if not 0.0 < failure < 1.0:
        raise UserError(f"failure = {failure}: choose a probability above 0 and below 1, e.g. 1e-3")


def median_ranks(d: int) -> tuple[int, int]:
    """The ranks whose mean numpy.median returns: the middle one, or the middle two of even d."""
    return (d + 1) // 2, d // 2 + 1


def next_prime(n: int) -> int:
    """The smallest prime >= n."""
    n = max(2, n)
    while any(n % f == 0 for f in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def previous_prime(n: int) -> int:
    """The largest prime <= n (n >= 2)."""
    while any(n % f == 0 for f in range(2, int(n**0.5) + 1)):
        n -= 1
    return n


def digits(d: int, prime: int) -> int:
    """Digits of the positions 0 .. d - 1 in base `prime` (`defn:vector_rep_of_indices`, which counts from 1)."""
    count, reach = 1, prime
    while reach < d:
        count, reach = count + 1, reach * prime
    return count


def hash_capacity(d: int, prime: int, functions: int) -> int:
    """The largest number of entries that `functions` hash functions provably separate (`lemma:existence_of_success`).

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
