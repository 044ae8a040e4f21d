"""The formula of a Spec: the guard, the construction and the weighted ranks, traced as a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from exporter.analysis.contract import MANTISSA, DType
from exporter.constructions import Form, Statistics, default, lookup
from exporter.errors import UserError
from exporter.ir.input_rounding import GUARD, guarded, normalised
from exporter.ir.network import Network, network
from exporter.ir.primitives import compare, compare_saturating, like
from exporter.ir.trace import Interpolation, Mean, Node, stack, total, vector
from exporter.planning.schedule import Failure
from exporter.planning.search import NoScheduleError
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import Task


def trace(
    spec: Spec, form: Form = "pair", *, rounded: DType | None = None, offsets: bool = True, floats: bool = False
) -> tuple[Network, Failure]:
    """The network of a spec, from data values to data values, and its failure probability.

    `rounded`: the first layers round the data to the grid in this floating-point type, and clamp it
    (exporter.ir.input_rounding). `floats`: the outputs use numpy's operations, for a profile without a grid.
    """
    task, grid = spec.task, spec.grid
    x = vector(task.d, grid.low, grid.high)
    u = guarded(grid, x, MANTISSA[rounded]) if rounded else normalised(grid, x)

    def formula() -> tuple[Node, Statistics]:
        stats = lookup(spec.construction).build(u, task.ranks, spec, form, offsets)
        if floats:
            columns = _columns_as_numpy(stats, task)
        else:
            columns = [_column(stats, task, i, grid) for i in range(len(task.outputs))]
        if spec.certificate:
            test = compare if form != "bounded" else compare_saturating
            columns += _certificate(u, stats, spec.delta, test)
        return stack(columns), stats

    try:
        output, stats = formula()
    except NoScheduleError as error:
        raise UserError(f"{error}; {default(task.op)} is exact") from None
    stats.names.span(GUARD, x, u)
    return network(x, output, stats.names, again=lambda: formula()[0]), stats.failure


def _column(stats: Statistics, task: Task, i: int, grid: Grid) -> Node:
    """One output in data values: the weighted order statistics as a single sum."""
    out = task.outputs[i]
    span = Fraction(grid.span)
    parts = [stats.values.take([task.ranks.index(r)]) for r in out.ranks]
    if parts[0].size == 1 and out.weights == (Fraction(1),) and span == 1 and grid.low == 0:
        return parts[0]
    factors = [span * w for w in out.weights]
    if factors == [Fraction(1, 2)] * 2 and grid.low == 0:
        return mean(*parts)
    return total(list(zip(factors, parts, strict=True)), grid.low)


def _columns_as_numpy(stats: Statistics, task: Task) -> list[Node]:
    """All outputs: entries, means of two computed as in numpy.mean, and quantiles computed as in numpy.quantile."""
    place = {rank: i for i, rank in enumerate(task.ranks)}
    single = [i for i, out in enumerate(task.outputs) if len(out.ranks) == 1]
    double = [i for i, out in enumerate(task.outputs) if len(out.ranks) == 2]
    columns = [stats.values.take([place[task.outputs[i].ranks[0]] for i in single])] if single else []
    ends = [(place[low], place[high]) for low, high in (task.outputs[i].ranks for i in double)]
    if double and task.interpolation != "sum":
        columns.append(interpolated(stats.values, ends, [float(task.outputs[i].weights[1]) for i in double]))
    elif double:
        columns.append(mean(*(stats.values.take(each) for each in zip(*ends, strict=True))))
    return [stack(columns).take(np.argsort([*single, *double]))]


def _certificate(u: Node, stats: Statistics, delta: Fraction, test: Callable[..., Node]) -> list[Node]:
    """For every rank, the number of entries below m and not above m. The answer m is right iff below < rank <= not above."""
    columns = []
    for i in range(stats.values.size):
        m = like(stats.values.take([i]), u)
        columns += [test(m, u, delta).sum().reshape(1), (u.size - test(u, m, delta).sum()).reshape(1)]
    return columns


def mean(a: Node, b: Node) -> Node:
    """(a + b) / 2."""
    return Mean.of([(Fraction(1, 2), a), (Fraction(1, 2), b)])


def interpolated(values: Node, places: Sequence[tuple[int, int]], weights: Sequence[float]) -> Node:
    """Quantiles, each between two entries of `values`, computed as in numpy. `weights` belong to the upper entries."""
    lower, upper = (values.take(each) for each in zip(*places, strict=True))
    t = np.asarray(weights, dtype=np.float64)
    start = values.take(np.where(t < 0.5, *np.array(places).T))
    factors = np.where(t < 0.5, t, t - 1)
    steps = stack([(upper - lower).take([i]) * factor for i, factor in enumerate(factors.tolist())])
    return Interpolation.of([(1, start), (1, steps)], start=start, upper=upper, lower=lower, weights=factors)
