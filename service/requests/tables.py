"""Tables as bodies: CSV, and the stream and file formats of Arrow, by pyarrow (the extra `tables`).

A vector is a column, or a row.

They are read in a thread, into one matrix of floats. What a hostile table could cost is looked at before pyarrow does: the
number of columns and of lines of CSV; in Arrow the length of the schema, compressed or dictionary-encoded columns, which
may be larger than they look, and how many batches there are.
"""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from service.errors import BadInputError, ProblemError
from service.requests.answer import Answer
from service.requests.bodies import Bundle, Question
from service.requests.json_body import Body, BodyLimits, Reading, too_long, too_many
from service.requests.options import MedianOptions
from service.scaling import Floats

FIRST_LINE = 1 << 20  # bytes
SCHEMA = 1 << 20
BATCHES = 1 << 14
BLOCK = 1 << 20
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL"]
MAGIC = b"ARROW1\0\0"
MARK = b"\xff\xff\xff\xff"
RECORDS = "record batch"


def arrow() -> Any:
    """pyarrow, loaded when it is needed for the first time."""
    try:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.csv  # noqa: PLC0415
        import pyarrow.ipc  # noqa: PLC0415
    except ImportError:
        said = "Tables are read by pyarrow, which is not installed here: pip install 'onnx-median[tables]'."
        raise ProblemError(415, said) from None
    return pa


def _in_thread(parse: Callable[..., Question]) -> Callable[[Body, MedianOptions, BodyLimits], Reading[Question]]:
    def read(body: Body, options: MedianOptions, limits: BodyLimits) -> Reading[Question]:
        question: Question = yield partial(parse, body, options, limits)
        return question

    return read


class Matrix:
    """The numbers of the wanted columns, as the vectors that are asked about."""

    def __init__(self, names: list[str], rows: int, options: MedianOptions, dtype: Any = np.float64) -> None:
        self.names, self.options, self.count = names, options, 0
        self.by_rows = options.by == "rows"
        self.values: Floats = np.empty((rows, len(names)) if self.by_rows else (len(names), rows), dtype)

    def add(self, batch: Any) -> None:
        """The rows of a batch that has these columns, in this order."""
        end = self.count + batch.num_rows
        for number in range(len(self.names)):
            column = batch.column(number).to_numpy(zero_copy_only=False)
            if self.by_rows:
                self.values[self.count : end, number] = column
            else:
                self.values[number, self.count : end] = column
        self.count = end

    def question(self, limits: BodyLimits) -> Question:
        if not self.count:
            raise BadInputError("The table has no rows.")
        values = self.values[: self.count] if self.by_rows else self.values[:, : self.count]
        _check(len(self.names), self.count, self.by_rows, limits)
        names = None if self.by_rows else self.names
        return Question([Bundle(values, range(len(values)))], len(values), self.options, names)


def _check(columns: int, rows: int, by_rows: bool, limits: BodyLimits) -> None:
    vectors, length = (rows, columns) if by_rows else (columns, rows)
    if vectors > limits.vectors:
        raise too_many(limits.vectors)
    if length > limits.length:
        raise too_long(limits.length, 0)


def _wanted(names: list[str], options: MedianOptions) -> list[str]:
    """The columns asked for, or all."""
    if len(set(names)) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise BadInputError(f"The column {twice[:40]!r} is there twice.")
    for name in options.columns or ():
        if name not in names:
            known = ", ".join(repr(each[:40]) for each in names[:20])
            raise BadInputError(f"There is no column {name[:40]!r}; there are {known}{', ...' * (len(names) > 20)}.")
    return list(options.columns or names)


def _parse_csv(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
    pa = arrow()
    end = body.find(b"\n", 0, FIRST_LINE)
    first = bytes(body[: end if end >= 0 else FIRST_LINE])
    if end < 0 and len(body) > FIRST_LINE:
        raise BadInputError(f"The first line is longer than {FIRST_LINE} bytes.")
    most = max(limits.vectors, 1)
    if first.count(b",") >= most:
        raise BadInputError(f"Too many columns: at most {most} in one request.")
    try:
        cells = next(csv.reader([first.decode("utf-8-sig").rstrip("\r\n")], strict=True), [])
    except (UnicodeDecodeError, csv.Error):
        raise BadInputError("The first line is not one of a CSV file in UTF-8.", status=400) from None
    if not cells:
        raise BadInputError("The first line of the table is empty.")
    names = cells if options.header else [f"f{number}" for number in range(len(cells))]
    wanted = _wanted(names, options)
    lines = max(body.count(b"\n"), body.count(b"\r")) + 1
    if lines > (limits.vectors if options.by == "rows" else limits.length) + 2:  # a header, and an end of the last line
        _check(len(wanted), lines - 2, options.by == "rows", limits)
    matrix = Matrix(wanted, lines, options)
    types = dict.fromkeys(wanted, pa.float64())
    try:
        reader = pa.csv.open_csv(
            pa.BufferReader(pa.py_buffer(body)),
            pa.csv.ReadOptions(
                use_threads=False, block_size=BLOCK, column_names=names, skip_rows=1 if options.header else 0
            ),
            convert_options=pa.csv.ConvertOptions(include_columns=wanted, column_types=types, null_values=MISSING),
        )
        for batch in reader:
            matrix.add(batch)
    except pa.ArrowInvalid as error:
        said = str(error).splitlines()[0][:200]
        if "Empty CSV" in said or "Could not skip" in said:
            raise BadInputError("The table has no rows.") from None
        remedy = "" if options.columns else " Name the columns that are numbers with ?columns=..."
        raise BadInputError(f"The table cannot be read: {said.rstrip('.')}.{remedy}") from None
    return matrix.question(limits)


def _parse_arrow(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
    pa = arrow()
    start = (
        len(MAGIC) if body[: len(MAGIC)] == MAGIC else 0
    )  # a file is a stream between marks, with an index at the end
    at = start + (4 if body[start : start + 4] == MARK else 0)
    if len(body) < at + 4 or not 0 < int.from_bytes(body[at : at + 4], "little") <= SCHEMA:
        raise BadInputError(f"The body is not an Arrow stream with a schema of at most {SCHEMA} bytes.", status=400)
    try:
        reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(memoryview(body)[start:]))
        schema = pa.ipc.read_schema(reader.read_next_message())
        wanted = _wanted(schema.names, options)
        for name in wanted:
            kind = schema.field(name).type
            if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
                remedy = "" if options.columns else "; name those that are with ?columns=..."
                raise BadInputError(f"The column {name[:40]!r} is {str(kind)[:40]}, not numbers{remedy}.")
        batches = list(_batches(pa, reader, schema))
        rows = sum(batch.num_rows for batch in batches)
        _check(len(wanted), rows, options.by == "rows", limits)
        small = all(pa.types.is_floating(schema.field(name).type) for name in wanted)
        small = small and all(schema.field(name).type.bit_width <= 32 for name in wanted)
        matrix = Matrix(wanted, rows, options, np.float32 if small else np.float64)
        for batch in batches:
            picked = batch.select(wanted)
            picked.validate(full=True)
            matrix.add(picked)
    except (pa.ArrowException, OSError, ValueError, struct.error, StopIteration, EOFError) as error:
        said = (str(error).splitlines() or ["it ends too early"])[0][:200]
        raise BadInputError(
            f"The body is not an Arrow stream that can be read here: {said.rstrip('.')}.", status=400
        ) from None
    return matrix.question(limits)


def _batches(pa: Any, reader: Any, schema: Any) -> Iterator[Any]:
    """The batches of a stream, whose memory is the body's."""
    for message in islice(iter(partial(next, reader, None), None), BATCHES):
        if message.type != RECORDS:
            raise BadInputError(
                "Dictionary-encoded columns are not accepted; send them as they are, or leave them out."
            )
        if _is_compressed(message.metadata):
            raise BadInputError("Compressed columns are not accepted; write the stream without compression.")
        yield pa.ipc.read_record_batch(message, schema)
    if next(reader, None) is not None:
        raise BadInputError(f"Too many batches: at most {BATCHES} in one request.")


def _is_compressed(metadata: Any) -> bool:
    """Whether a record batch has a compression: the fourth field of the flatbuffer that is the third field of a message."""
    text = memoryview(metadata)

    def field(table: int, number: int) -> int:
        """Where a field of a table is, or 0."""
        entries = table - struct.unpack_from("<i", text, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", text, entries)[0]:
            return 0
        offset: int = struct.unpack_from("<H", text, entries + 4 + 2 * number)[0]
        return table + offset if offset else 0

    message: int = struct.unpack_from("<I", text, 0)[0]
    header = field(message, 2)
    batch = header + struct.unpack_from("<I", text, header)[0]
    return field(batch, 3) != 0


read_csv = _in_thread(_parse_csv)
read_arrow = _in_thread(_parse_arrow)


def write_csv(answer: Answer) -> bytes:
    """A line for each vector, the name of its column first if it has one; nothing stands for NaN."""
    wide = answer.columns or 1
    told = ["" if isnan(number) else repr(number) for number in answer.medians]
    lines = [",".join(told[at : at + wide]) for at in range(0, len(told), wide)]
    if answer.names is None:
        return "\n".join([",".join(answer.labels), *lines, ""]).encode()
    names = io.StringIO()
    csv.writer(names, lineterminator="\n").writerows([name] for name in answer.names)
    named = names.getvalue().splitlines()
    return "\n".join(["column," + ",".join(answer.labels), *map(",".join, zip(named, lines, strict=True)), ""]).encode()


def write_arrow(file: bool, answer: Answer) -> bytes:
    """The same as a table."""
    pa = arrow()
    values = answer.array.reshape(len(answer.medians) // (answer.columns or 1), -1)
    columns = [] if answer.names is None else [pa.array(answer.names, pa.string())]
    columns += [pa.array(np.ascontiguousarray(column)) for column in values.T]
    return _stored(pa, file, columns, ["column"] * (answer.names is not None) + answer.labels)


def _stored(pa: Any, file: bool, columns: list[Any], names: list[str]) -> bytes:
    table = pa.table(columns, names=names)
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def pack_csv(matrix: Floats) -> bytes:
    """A line for each vector: the client's side, with ?by=rows&header=false."""
    return "\n".join(",".join(map(repr, row)) for row in matrix.tolist()).encode()


def pack_arrow(file: bool, matrix: Floats) -> bytes:
    pa = arrow()
    columns = [pa.array(np.ascontiguousarray(column)) for column in matrix.T]
    return _stored(pa, file, columns, [f"f{number}" for number in range(len(columns))])


def unpack_csv(content: bytes, query: Mapping[str, str]) -> npt.NDArray[np.float64]:
    """The numbers of an answer without names."""
    lines = content.decode().splitlines()[1:]
    return _flat([[float(cell or "nan") for cell in line.split(",")] for line in lines], query)


def unpack_arrow(file: bool, content: bytes, query: Mapping[str, str]) -> npt.NDArray[Any]:
    pa = arrow()
    table = (pa.ipc.open_file if file else pa.ipc.open_stream)(content).read_all()
    return _flat(np.array([column.to_numpy() for column in table.columns]).T, query)


def _flat(values: Iterable[Any], query: Mapping[str, str]) -> npt.NDArray[Any]:
    matrix = np.asarray(values)
    return matrix if {"quantiles", "ranks"} & {*query} else matrix.reshape(-1)
