"""What a process does with one piece of a table: answer its rows, or count its entries.

A task can be sent to another process; it holds what is asked, and finds the models in the output folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from service.batch.inputs import Piece, TableError, flat, is_list, numbers, read
from service.batch.journal import Journal, whole
from service.batch.ranks import Counts, Statistic
from service.batch.search import Bins, Round, search
from service.batch.solve import Solver
from service.scaling import Floats

Present = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Asked:
    """What is asked of every piece."""

    folder: Path
    columns: tuple[str, ...]
    dtype: str
    statistics: tuple[Statistic, ...]
    nan: str
    empty: str
    largest: int

    @property
    def journal(self) -> Journal:
        return Journal(self.folder)

    def solver(self, own_length: bool = False) -> Solver:
        return Solver(self.journal.work / "models", search, self.largest, own_length)

    def schema(self, keys: Sequence[pa.Field]) -> pa.Schema:
        """The columns of the output."""
        answers = [pa.field(one.name, pa.from_numpy_dtype(np.dtype(self.dtype))) for one in self.statistics]
        return pa.schema([*keys, *answers, pa.field("certified", pa.bool_()), pa.field("error_bound", pa.float64())])

    def table(self, schema: pa.Schema, keys: Sequence[Any], answers: Sequence[Floats], there: Present) -> pa.Table:
        """Answers beside their keys; null where there was nothing to answer. Every one is proven, and exact."""
        missing = ~there
        proof = [np.ones(len(there), np.bool_), np.zeros(len(there))]
        return pa.Table.from_arrays(
            [*keys, *(pa.array(each, mask=missing) for each in (*answers, *proof))], schema=schema
        )

    def solved(self, values: Floats, lengths: Counts, solver: Solver) -> tuple[list[Floats], Present]:
        """The statistics of vectors, some of which may be empty."""
        there = lengths > 0
        answers = [np.zeros(len(lengths), values.dtype) for _ in self.statistics]
        if there.any():
            for answer, found in zip(answers, solver.solve(values, lengths[there], self.statistics), strict=True):
                answer[there] = found
        return answers, there


@dataclass(frozen=True)
class RowsTask:
    """One answer for each row of a piece, in a part of its own."""

    asked: Asked
    keep: tuple[str, ...]

    def __call__(self, item: tuple[int, Piece]) -> int:
        number, piece = item
        rows, writer = 0, None
        with whole(self.asked.journal.part(number)) as new:
            try:
                for table in self.answers(piece):
                    writer = writer or pq.ParquetWriter(new, table.schema)
                    writer.write_table(table)
                    rows += table.num_rows
            finally:
                if writer is not None:
                    writer.close()
        return rows

    def answers(self, piece: Piece) -> Iterator[pa.Table]:
        asked, solver, row = self.asked, self.asked.solver(own_length=True), 0
        for batch in read(piece, [*self.keep, *asked.columns], asked.columns):
            values, lengths = self.vectors(batch, piece)
            if not lengths.all() and asked.empty == "error":
                at = row + int(np.flatnonzero(lengths == 0)[0])
                where = piece.place(*asked.columns)
                raise TableError(f"{where}: row {at} has no number: --empty null answers it with null")
            answers, there = asked.solved(values, lengths, solver)
            keys = [batch.column(name) for name in self.keep]
            schema = asked.schema([batch.schema.field(name) for name in self.keep])
            yield asked.table(schema, keys, answers, there)
            row += batch.num_rows

    def vectors(self, batch: pa.RecordBatch, piece: Piece) -> tuple[Floats, Counts]:
        """The numbers of all rows one behind the other, and how many each row has."""
        columns, dtype, nan = self.asked.columns, self.asked.dtype, self.asked.nan
        if is_list(batch.schema.field(columns[0]).type):
            array, where = batch.column(columns[0]), piece.place(columns[0])
            if array.null_count and nan == "error":
                raise TableError(f"{where}: a row is null: --nan skip takes it for an empty one")
            entries, lengths = flat(array)
            values, present = numbers(entries, dtype, nan, where)
        else:
            found = [numbers(batch.column(name), dtype, nan, piece.place(name)) for name in columns]
            values = np.stack([each for each, _ in found], axis=1).ravel()
            lengths = np.full(batch.num_rows, len(columns), np.int64)
            present = None if all(there is None for _, there in found) else ~np.isnan(values)
        if present is None:
            return values, lengths
        counted = np.concatenate([[0], np.cumsum(present)])
        ends = np.cumsum(lengths)
        return values[present], counted[ends] - counted[ends - lengths]


@dataclass(frozen=True)
class CountTask:
    """The counts of one round over some pieces, for every column that is searched, and the seconds of work that took."""

    rounds: dict[str, Round]
    nan: str

    def __call__(self, pieces: Sequence[Piece]) -> tuple[dict[str, Bins], float]:
        began = time.thread_time()
        counted = {name: asked.blank() for name, asked in self.rounds.items()}
        for piece in pieces:
            for batch in read(piece, list(self.rounds), list(self.rounds)):
                for name, asked in self.rounds.items():
                    values, present = numbers(batch.column(name), asked.dtype, self.nan, piece.place(name))
                    asked.count(values if present is None else values[present], counted[name])
        return counted, time.thread_time() - began
