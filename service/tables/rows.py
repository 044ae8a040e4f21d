"""One answer for each row: of the lists in a column, or of several columns side by side.

Rows of up to LONGEST numbers go through networks (`service.statistics.solve`), which are built when they are first needed
and kept in the user's cache folder. Longer rows, and dates, times and decimals, are sorted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exporter.errors import UserError
from exporter.version import __version__
from service.statistics.layout import Target
from service.statistics.solve import Use, run, solve
from service.statistics.statistic import Statistic
from service.statistics.vectors import Vectors
from service.tables.groups import Store
from service.tables.inputs import Source
from service.tables.query import TableQuery
from service.tables.types import (
    Counts,
    Numbers,
    TableError,
    answers,
    dtype_of,
    is_list,
    numbers,
    plain,
    plain_type,
    to_words,
    word_of,
)

LONGEST = 2048
LENGTHS = [k << j for j in range(11) for k in (4, 6)]  # of networks for rows of different lengths
FED = 1 << 15  # numbers in one call of onnxruntime, so that they stay in the processor's cache
_building = Lock()


def answered(source: Source, question: TableQuery, item: tuple[int, Sequence[Any]]) -> tuple[int, pa.Table]:
    """The number of a part, and one answer for each row of its pieces."""
    number, pieces = item
    keep = question.keep
    fields = [source.schema.field(name) for name in dict.fromkeys([*keep, *question.columns])]
    none = pa.record_batch([pa.array([], each.type) for each in fields], pa.schema(fields))
    found = []
    for batch in chain(source.batches(none.schema.names, pieces), [none]):
        made = _answered(batch, question.columns, question.statistics, question.nan)
        found.append(pa.table([*(batch.column(name) for name in keep), *made.columns], [*keep, *made.column_names]))
    return number, pa.concat_tables(found)


def _answered(batch: pa.RecordBatch, columns: Sequence[str], statistics: Sequence[Statistic], nan: str) -> pa.Table:
    """Count and statistics of each row."""
    kind, values, lengths = _vectors(batch, columns, nan)
    there, made = lengths > 0, []
    short = there & (lengths <= LONGEST)
    dtype = values.dtype
    if dtype.kind == "f" and dtype.itemsize < 4:
        short[:] = False
    if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and short.all() and len(short):
        found = run(solve(Vectors(values, lengths), statistics, Networks(len(np.unique(lengths)) == 1)), _called)
        made = [pa.array(each + dtype.type(0) if each.dtype.kind == "f" else each) for each in found.values]
    else:
        codes = np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
        store = Store(word_of(kind), len(values), keyed=True)
        store.add(codes, len(lengths), to_words(values), None)
        for statistic, (low, high, weight) in zip(statistics, store.pick(statistics), strict=True):
            made.append(answers(kind, statistic, low, high, (weight, there)))
    return pa.table([pa.array(lengths), *made], names=["count", *(each.name for each in statistics)])


def _vectors(batch: pa.RecordBatch, columns: Sequence[str], nan: str) -> tuple[pa.DataType, Numbers, Counts]:
    """The numbers of all rows one behind the other, their type, and how many each row has."""
    column = batch.column(columns[0])
    if is_list(column.type):
        where = f"column {columns[0]!r}"
        if column.null_count and nan == "error":
            raise TableError(
                f"{where}: {column.null_count} rows are null: nan='skip' (--nan skip) takes them for empty rows"
            )
        kind = plain_type(column.type.value_type)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        values, present = numbers(plain(column.flatten()), where, nan)
    else:
        kinds = {plain_type(batch.schema.field(name).type) for name in columns}
        kind = kinds.pop() if len(kinds) == 1 else pa.float64()
        found = []
        for name in columns:
            one = plain(batch.column(name))
            try:
                found.append(numbers(one if one.type == kind else one.cast(kind), f"column {name!r}", nan))
            except pa.ArrowException as error:
                raise TableError(f"column {name!r} cannot become {kind} beside other columns: {error}") from None
        values = np.stack([each for each, _ in found], axis=1).ravel()
        masks = [np.ones(len(each), bool) if there is None else there for each, there in found]
        present = None if all(there is None for _, there in found) else np.stack(masks, axis=1).ravel()
        lengths = np.full(batch.num_rows, len(columns), np.int64)
    if present is not None:
        counted = np.concatenate([[0], np.cumsum(present)])
        ends = np.cumsum(lengths)
        values, lengths = values[present], counted[ends] - counted[ends - lengths]
    assert dtype_of(kind) is not None
    return kind, values, lengths


class Networks:
    """The networks for rows: of the very length where all rows have one length, else of the next of LENGTHS."""

    def __init__(self, one_length: bool) -> None:
        self.one_length = one_length

    def choose(self, n: int, target: Target) -> Use:
        from service.statistics.padding import padding_for  # noqa: PLC0415

        d = n if self.one_length and n > 3 else next(each for each in LENGTHS if each >= n)
        low = _roundest(target.low, target.low + d - n)  # few different ranks, so that few networks are built
        model = _loaded(d, (low,) if low == d or (target.single and d == n) else (low, low + 1))
        padding = padding_for(model.columns, model.d, n, target)
        assert padding is not None
        return Use(model, padding)

    def instead(self, n: int, target: Target, failed: Any) -> Use:
        raise UserError(f"{failed.name} gave an answer that counting refutes: remove {cache_folder()} and run again")


def _roundest(first: int, last: int) -> int:
    """The number from first to last that is divisible by the highest power of two."""
    step = 1
    while -(-first // (2 * step)) * 2 * step <= last:
        step *= 2
    return -(-first // step) * step


def _called(call: Any) -> Any:
    from service.statistics.counting import OUTPUT  # noqa: PLC0415

    size, model = max(1, FED // call.model.d), call.model
    starts = range(0, len(call.rows), size)
    found = [model.session.run([OUTPUT], {model.input_name: call.rows[i : i + size]})[0] for i in starts]
    return found[0] if len(found) == 1 else np.concatenate(found)


@cache
def cache_folder() -> Path:
    """Where networks are kept between runs; a temporary folder where the cache cannot be written."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnx-median" / f"tables-{__version__}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return home
    except OSError:
        return Path(tempfile.mkdtemp(prefix="onnx-median-"))


def _loaded(d: int, ranks: tuple[int, ...]) -> Any:
    with _building:
        return _opened(d, ranks)


@cache
def _opened(d: int, ranks: tuple[int, ...]) -> Any:
    """A network, from the cache folder that several processes may fill at once."""
    from service.models import registry  # noqa: PLC0415, loads onnxruntime

    home = cache_folder() / f"d{d}-ranks{'-'.join(map(str, ranks))}"
    if not home.is_dir():
        _build(home, d, ranks)
    found = registry.load([home])
    if len(found.models) != 1:
        reason = next(iter(found.left_out.values()), "it holds no model")
        raise UserError(f"{home} cannot be used: {reason}; remove the folder to build it again")
    return next(iter(found.models.values()))


def _build(home: Path, d: int, ranks: tuple[int, ...]) -> None:
    from exporter.library import export_model  # noqa: PLC0415, the builder is loaded only when it is needed

    made = Path(tempfile.mkdtemp(dir=home.parent, prefix=".new-"))
    bits = 12 if d <= 64 else 16  # few digits; values that share a grid number are told apart afterwards
    try:
        export_model(d, out=made, rank=ranks, bits=bits, inputs="grid", profile="fused", dtype="float32")
        made.rename(home)
    except OSError:
        if not home.is_dir():  # otherwise another process was first, with the same bytes
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
