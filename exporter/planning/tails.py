"""Tails of the hypergeometric law and the bounds built on them.

Every probability that a planner reports is a sum of the quantities below. So each function returns an upper bound that
holds for every d, not an approximation. Notation: there are `total` elements, and `marked` of them are marked. `drawn` is
the size of a uniformly random sample without replacement. X is the number of marked elements in the sample.

Randomness has one source: the weights of each round contain a uniformly random permutation of the entries. So any set of n
live entries stands at n uniformly random positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exporter.planning import reproducible

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TERMS = 12  # summands that are added before a geometric series bounds the rest
# Each ln n! of the table has a relative error of at most 1e-15. The terms of a binomial quotient add up to at most
# 4 ln total!, and eight additions round by 2^-53 of twice this sum. The 16 covers the summands of a tail.
SLACK, MORE = 8e-15, 16.0
RATES = 0.03 * np.multiply.accumulate(np.full(64, 1.1))  # rates for Chernoff's bound: 0.033 to 13.4


def _log_factorials(largest: int) -> Floats:
    """ln n! for n = 0 .. largest. The table is cached for the next power of two, so that searches share it."""
    return reproducible.log_factorials(1 << max(10, int(largest).bit_length()))


def _log_pmf(n: Ints, k: Ints, s: Ints, x: Ints) -> tuple[Floats, Floats]:
    """log P(X = x) for a possible x, and a bound of its error."""
    f = _log_factorials(int(n.max(initial=0)))
    whole, rest = f[n], n - k - s + x
    value = f[k] - f[x] - f[k - x] + f[n - k] - f[s - x] - f[rest] - whole + f[s] + f[n - s]
    return value, SLACK * (whole + MORE)


def log_pmf(total: ArrayLike, marked: ArrayLike, drawn: ArrayLike, hits: ArrayLike) -> Floats:
    """An upper bound of log P(X = hits), minus infinity if impossible. All arguments broadcast."""
    n, k, s, x = np.broadcast_arrays(*(np.asarray(v, dtype=np.int64) for v in (total, marked, drawn, hits)))
    possible = (x >= 0) & (x <= k) & (x <= s) & (s - x <= n - k) & (k <= n) & (s <= n) & (k >= 0) & (s >= 0)
    out = np.full(n.shape, -np.inf)
    value, slack = _log_pmf(n[possible], k[possible], s[possible], x[possible])
    out[possible] = value + slack
    return out


def lower_tail(total: ArrayLike, marked: ArrayLike, drawn: ArrayLike, most: ArrayLike) -> Floats:
    """An upper bound of P(X <= most): the largest TERMS summands, then a geometric series. (The law is log-concave.)"""
    n, k, s, m = np.broadcast_arrays(*(np.asarray(v, dtype=np.int64) for v in (total, marked, drawn, most)))
    lowest, highest = np.maximum(0, s - (n - k)), np.minimum(k, s)
    value = np.where(m >= highest, 1.0, 0.0)
    inside = (m >= lowest) & (m < highest)
    early = m * (n + 2) <= (s + 1) * (k + 1)  # up to the mode
    below, beyond = inside & early, inside & ~early
    if below.any():
        value[below] = _lower_terms(n[below], k[below], s[below], m[below])
    if beyond.any():  # beyond the mode the complement is smaller
        value[beyond] = 1.0 - _upper_terms(n[beyond], k[beyond], s[beyond], m[beyond] + 1)
    return np.asarray(value, dtype=np.float64)


def _lower_terms(n: Ints, k: Ints, s: Ints, most: Ints) -> Floats:
    """An upper bound of P(X <= most) up to the mode: its largest summands and a geometric series."""
    x, lowest = most.astype(np.float64), np.maximum(0, s - (n - k)).astype(np.float64)
    value, slack = _log_pmf(n, k, s, most)
    term = reproducible.exp(value + slack)
    more, k1, s1 = (v.astype(np.float64) for v in (n - k - s, k + 1, s + 1))
    body, ratio = np.zeros_like(term), np.zeros_like(term)
    for _ in range(TERMS):
        body += term
        # P(X = x - 1) / P(X = x); it is 0 at the lowest value of X, so later summands are 0
        ratio = x * (more + x)
        ratio /= (k1 - x) * (s1 - x)
        term *= ratio
        x = np.maximum(x - 1, lowest)
    ratio = ratio * (1 + 1e-15)  # for a ratio near 1 its rounding matters
    rest = np.where(ratio < 1, term / np.maximum(1 - ratio, 1e-300), 1.0)
    return np.asarray(np.minimum(1.0, body + rest), dtype=np.float64)


def _upper_terms(n: Ints, k: Ints, s: Ints, least: Ints) -> Floats:
    """A lower bound of P(X >= least): its first summands."""
    x = least.astype(np.float64)
    value, slack = _log_pmf(n, k, s, least)
    term = reproducible.exp(value - slack)
    body = np.zeros_like(term)
    more, kf, sf = (v.astype(np.float64) for v in (n - k - s, k, s))
    for _ in range(TERMS):
        body += term
        # P(X = x + 1) / P(X = x); it is 0 at the highest value of X, so later summands are 0
        ratio = (kf - x) * (sf - x)
        x += 1
        ratio /= x * (more + x)
        term *= ratio
    return body


def upper_tail(total: ArrayLike, marked: ArrayLike, drawn: ArrayLike, least: ArrayLike) -> Floats:
    """An upper bound of P(X >= least), from the number of unmarked elements in the sample."""
    n, k, s, m = (np.asarray(v, dtype=np.int64) for v in (total, marked, drawn, least))
    return lower_tail(n, n - k, s, s - m)


def independent_upper_tail(trials: ArrayLike, mean: ArrayLike, least: ArrayLike) -> Floats:
    """A bound of P(X >= least) for every sum X of at most `trials` independent indicators with a mean of at most `mean`.

    Hoeffding (1956; Lemma 2 of docs/frontier.md): for least >= mean + 1 the binomial sum with equal chances has the largest
    tail. For a smaller `least` the bound is 1. A hypergeometric count of k marked elements among s drawn is such a sum, of
    min(k, s) indicators (Lemma 1 there). So is a sum of independent hypergeometric counts.
    """
    n, m, k = np.broadcast_arrays(
        np.asarray(trials, np.int64), np.asarray(mean, np.float64), np.asarray(least, np.int64)
    )
    some = (k >= m + 1) & (k <= n) & (m > 0)
    value = np.where((k > n) | ((m <= 0) & (k > 0)), 0.0, 1.0)
    if some.any():
        value[some] = _binomial_terms(n[some], m[some] / n[some], k[some])
    return np.asarray(value, dtype=np.float64)


def _binomial_terms(n: Ints, p: Floats, least: Ints) -> Floats:
    """An upper bound of P(Bin(n, p) >= least) for `least` beyond the mode: the largest summands and a geometric series."""
    f, x = _log_factorials(int(n.max())), least.astype(np.float64)
    hits, misses = x * reproducible.log(p), (n - x) * reproducible.log(1 - p)
    slack = SLACK * (f[n] + MORE + n - hits)  # p and 1 - p are rounded too
    term = reproducible.exp(f[n] - f[least] - f[n - least] + hits + misses + slack)
    body, ratio = np.zeros_like(term), np.zeros_like(term)
    for _ in range(TERMS):
        body += term
        ratio = np.maximum(0.0, (n - x) * p / ((x + 1) * (1 - p)))
        term, x = term * ratio, x + 1
    ratio = ratio * (1 + 1e-15)
    return np.asarray(np.minimum(1.0, body + term / np.maximum(1 - ratio, 1e-300)), dtype=np.float64)


def log_multinomial(counts: Sequence[ArrayLike], chances: Sequence[ArrayLike]) -> Floats:
    """An upper bound of the log of n!/(c_1! c_2! ...) p_1^c_1 p_2^c_2 ..., n the sum of the counts, all chances above 0.

    The chances may be upper bounds that add up to more than 1. The result then bounds every law with smaller chances.
    """
    c = np.broadcast_arrays(*(np.asarray(v, np.int64) for v in counts))
    n = np.sum(c, axis=0, dtype=np.int64)
    f = _log_factorials(int(n.max(initial=0)))
    value, slack = f[n], f[n] + MORE + n
    for count, chance in zip(c, chances, strict=True):
        part = count * reproducible.log(np.asarray(chance, np.float64))
        value = value + part - f[count]
        slack = slack + np.abs(part)
    return np.asarray(value + SLACK * slack, dtype=np.float64)


def binomial_upper_tail(trials: ArrayLike, chance: ArrayLike, least: ArrayLike) -> Floats:
    """A bound of P(Bin(trials, p) >= least) for every p <= `chance`. It is 1 if `least` is within 1 of the mean."""
    n, p = np.asarray(trials, np.int64), np.minimum(np.asarray(chance, np.float64), 1.0)
    k = np.asarray(least, np.int64)
    return np.where(k <= 0, 1.0, independent_upper_tail(n, n * p, k))


def sum_reaches(law: Floats, times: int, least: int, slack: float = 0.0) -> Floats:
    """P(the sum of `times` independent numbers is at least `least`), for each row of `law`.

    A row is the law of one number: column x is P(number = x). If a row adds up to less than 1, the rest counts as a number
    that reaches `least` alone; so does `slack`, which covers roundings.
    """
    missing = np.maximum(0.0, 1 - reproducible.total(law, 1)) + slack
    reached = np.zeros((len(law), least + 1))
    reached[:, 0] = 1.0
    for _ in range(times):
        after = np.zeros_like(reached)
        for x in range(law.shape[1]):
            after[:, x:least] += reached[:, : max(0, least - x)] * law[:, x : x + 1]
            after[:, least] += reproducible.total(reached[:, max(0, least - x) :], 1) * law[:, x]
        after[:, least] += missing
        reached = after
    return np.minimum(1.0, reached[:, least] * (1 + 1e-9))


def largest_lower_cut(total: int, marked: int, drawn: int, probability: float) -> int:
    """The largest m >= -1 with P(X <= m) <= probability."""
    m = np.arange(-1, min(marked, drawn) + 1)
    return int(m[np.nonzero(lower_tail(total, marked, drawn, m) <= probability)[0][-1]])


def smallest_upper_cut(total: int, marked: int, drawn: int, probability: float) -> int:
    """The smallest m <= min(marked, drawn) + 1 with P(X >= m) <= probability."""
    m = np.arange(0, min(marked, drawn) + 2)
    return int(m[np.nonzero(upper_tail(total, marked, drawn, m) <= probability)[0][0]])


def spacing_exceeds(total: ArrayLike, drawn: ArrayLike, spacings: int, length: ArrayLike) -> Floats:
    """P(D > length), where D is the difference in rank over `spacings` consecutive gaps of the sorted sample.

    The drawn + 1 gaps (ends included) are exchangeable. So D has the law of the rank of the sample's element number
    `spacings`. This rank exceeds `length` exactly if the first `length` ranks hold fewer than `spacings` sampled elements.
    """
    return lower_tail(total, length, drawn, spacings - 1)


def overflow_tails(total: int, live: Ints, blocks: int, block: int, entries: int, most: int) -> Floats:
    """P(U > t | n) for n in `live` (rows) and t = 0 .. most (columns), U = sum over blocks of max(0, live - entries).

    n live entries stand at uniformly random positions among `total`, in disjoint blocks of at most `block` positions. The
    counts of the blocks are negatively associated (Lemma F.3), and so are increasing functions of the counts. So the moment
    generating function of U is at most the product over the blocks, and Chernoff's bound follows. For t = 0 a union bound
    over the blocks is better.
    """
    beyond = np.arange(1, max(2, min(int(live.max()), block) - entries + 1))
    logs = log_pmf(total, live, block, (entries + beyond)[:, None])
    growth = RATES * beyond[:, None]
    # E exp(rate relu(X - c)) = 1 + sum over the excess e >= 1 of (exp(rate e) - 1) P(X = c + e)
    parts = logs[:, :, None] + (growth + reproducible.log(1 - reproducible.exp(-growth)))[:, None, :]
    top = np.maximum(parts.max(axis=0), -1e300)
    parts -= top
    log_gain = (
        reproducible.log(np.maximum(reproducible.total(reproducible.exp(parts), 0), 1e-300)) + top + 1e-12
    )  # above all roundings
    grown = np.maximum(log_gain, 0.0) + reproducible.log1p(reproducible.exp(-np.abs(log_gain)))
    exponents = blocks * grown[:, :, None] - RATES[None, :, None] * np.arange(1, most + 2)
    bound = reproducible.exp(np.minimum(0.0, exponents.min(axis=1)))
    bound[:, 0] = np.minimum(bound[:, 0], blocks * reproducible.total(reproducible.exp(logs), 0))
    bound[live[:, None] <= entries + np.arange(most + 1)[None, :]] = 0.0
    return np.asarray(np.minimum.accumulate(np.minimum(bound, 1.0), axis=1), dtype=np.float64)
