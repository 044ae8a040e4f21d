"""Tables as bodies: CSV, and the stream and file formats of Arrow, by pyarrow (the extra `tables`).

A vector is a column, or a row.

A thread reads a table into one matrix of floats. Some limits are checked before pyarrow reads: the number of columns of a
CSV file; in Arrow the length of the schema, the number of batches, and compressed or dictionary-encoded columns, which may
be larger than they look. pyarrow handles everything else, including line ends and byte orders.
"""

from __future__ import annotations

import csv
import io
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.errors import install
from service.errors import BadInputError, ProblemError
from service.serving.bodies import Answer, Question
from service.serving.json_body import Body, BodyLimits, too_long, too_many
from service.serving.options import NUMBER, MedianOptions
from service.statistics.fed_grid import Floats

FIRST_LINE = 1 << 20  # bytes
SCHEMA = 1 << 20
BATCHES = 1 << 14
BLOCK = 1 << 20
GROWTH = 8
MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL"]
MAGIC = b"ARROW1\0\0"
MARK = b"\xff\xff\xff\xff"
RECORDS = "record batch"


def memory_for(body: Body) -> int:
    """The bytes that reading a table may take: a byte of text becomes at most 8 bytes of numbers."""
    return GROWTH * len(body)


def arrow() -> Any:
    """pyarrow, loaded when it is needed for the first time."""
    try:
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.csv  # noqa: PLC0415
        import pyarrow.ipc  # noqa: PLC0415
    except ImportError:
        said = f"A table needs pyarrow: {install('tables')}."
        raise ProblemError(415, said) from None
    return pa


def _question(names: list[str], batches: list[Any], options: MedianOptions, dtype: np.dtype[Any]) -> Question:
    """The question about a table with these columns, in this order."""
    rows, by_rows = sum(batch.num_rows for batch in batches), options.by == "rows"
    if not rows or not names:
        raise BadInputError("The table has no rows." if names else "The table has no columns.")
    values: Floats = np.empty((rows, len(names)) if by_rows else (len(names), rows), dtype)
    table = values if by_rows else values.T
    start = 0
    while batches:
        batch = batches.pop(0)  # a batch is freed once it is copied
        for number, column in enumerate(batch.columns):
            table[start : start + batch.num_rows, number] = column.to_numpy(zero_copy_only=False)
        start += batch.num_rows
    shape = rows, len(names)
    return Question.matrix(values, options, names=None if by_rows else names, table=shape)


def _check(columns: int, rows: int, by_rows: bool, limits: BodyLimits) -> None:
    vectors, length = (rows, columns) if by_rows else (columns, rows)
    if vectors > limits.vectors:
        raise too_many(limits.vectors)
    if length > limits.length:
        raise too_long(limits.length, 0)


def _wanted(names: list[str], options: MedianOptions) -> list[str]:
    """The requested columns, or all."""
    (most, times), known_names = Counter(names).most_common(1)[0] if names else ("", 0), set(names)
    if times > 1:
        raise BadInputError(f"The column {most[:40]!r} occurs twice.")
    for name in options.columns or ():
        if name not in known_names:
            known = ", ".join(repr(each[:40]) for each in names[:20])
            raise BadInputError(f"There is no column {name[:40]!r}; there are {known}{', ...' * (len(names) > 20)}.")
    return list(options.columns or names)


def read_csv(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
    pa = arrow()
    cells = _first_line(body, max(limits.vectors, 1))
    header = any(cells) and not _are_numbers(cells) if options.header is None else options.header
    names = cells if header else [f"f{number}" for number in range(len(cells))]
    wanted = _wanted(names, options)
    batches: list[Any] = []
    rows = 0
    try:
        reader = pa.csv.open_csv(
            pa.BufferReader(pa.py_buffer(body)),
            pa.csv.ReadOptions(use_threads=False, block_size=BLOCK, column_names=names, skip_rows=int(header)),
            convert_options=pa.csv.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(wanted, pa.float64()), null_values=MISSING
            ),
        )
        for batch in reader:
            rows += batch.num_rows
            _check(len(wanted), rows, options.by == "rows", limits)
            batches.append(batch)
    except pa.ArrowInvalid as error:
        said = str(error).splitlines()[0][:200]
        if "Empty CSV" in said or "Could not skip" in said:
            raise BadInputError("The table has no rows.") from None
        remedy = "" if options.columns else " Name the columns that are numbers with ?columns=..."
        raise BadInputError(f"The table cannot be read: {said.rstrip('.')}.{remedy}") from None
    return _question(wanted, batches, options, np.dtype(np.float64))


def _first_line(body: Body, most: int) -> list[str]:
    """The cells of the first line, at most this many."""
    first = bytes(body[: FIRST_LINE + 1])
    ends = [end for end in (first.find(b"\n"), first.find(b"\r")) if end >= 0]
    if not ends and len(first) > FIRST_LINE:
        raise BadInputError(f"The first line is longer than {FIRST_LINE} bytes.")
    first = first[: min(ends, default=len(first))]
    if first.count(b",") >= most:
        raise BadInputError(f"Too many columns: at most {most} in one request.")
    try:
        cells = next(csv.reader([first.decode("utf-8-sig")], strict=True), [])
    except (UnicodeDecodeError, csv.Error):
        raise BadInputError("The first line is not CSV text in UTF-8.", status=400) from None
    if not cells:
        raise BadInputError("The first line of the table is empty.")
    return cells


def _are_numbers(cells: list[str]) -> bool:
    """True if all cells of a line are numbers or empty."""
    return all(cell in MISSING or NUMBER.fullmatch(cell.strip()) for cell in cells)


def read_arrow(body: Body, options: MedianOptions, limits: BodyLimits) -> Question:
    pa = arrow()
    # a file is a stream between marks, with an index at the end
    start = len(MAGIC) if body[: len(MAGIC)] == MAGIC else 0
    at = start + (4 if body[start : start + 4] == MARK else 0)
    if len(body) < at + 4 or not 0 < int.from_bytes(body[at : at + 4], "little") <= SCHEMA:
        raise BadInputError(f"The body is not an Arrow stream with a schema of at most {SCHEMA} bytes.", status=400)
    stream = pa.py_buffer(memoryview(body)[start:])
    try:
        messages = pa.ipc.MessageReader.open_stream(stream)
        schema = pa.ipc.read_schema(messages.read_next_message())
        wanted = _wanted(schema.names, options)
        for name in wanted:
            kind = schema.field(name).type
            if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
                remedy = "" if options.columns else "; name those that are with ?columns=..."
                raise BadInputError(f"The column {name[:40]!r} is {str(kind)[:40]}, not numbers{remedy}.")
        _refuse_hidden_sizes(messages)
        chosen = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in wanted])
        batches = list(pa.ipc.open_stream(stream, options=chosen))
        rows = sum(batch.num_rows for batch in batches)
        _check(len(wanted), rows, options.by == "rows", limits)
        types = [schema.field(name).type for name in wanted]
        small = all(pa.types.is_floating(kind) and kind.bit_width <= 32 for kind in types)
        dtype: np.dtype[Any] = np.dtype(np.float32 if small else np.float64)
        floats = pa.schema([(name, pa.from_numpy_dtype(dtype)) for name in wanted])
        for batch in batches:
            batch.validate(full=True)
        return _question(wanted, [_as_floats(pa, batch.select(wanted), floats) for batch in batches], options, dtype)
    except (pa.ArrowException, OSError, ValueError, struct.error, StopIteration, EOFError) as error:
        said = (str(error).splitlines() or ["it ends too early"])[0][:200]
        raise BadInputError(
            f"The body is not an Arrow stream that can be read here: {said.rstrip('.')}.", status=400
        ) from None


def _as_floats(pa: Any, batch: Any, floats: Any) -> Any:
    """The numbers as floats. An integer that float64 cannot hold is refused, never rounded."""
    columns = []
    for column, field in zip(batch.columns, floats, strict=True):
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowInvalid:
            said = f"The column {field.name[:40]!r} has integers beyond 2^53, which cannot be answered exactly."
            raise BadInputError(said) from None
    return pa.RecordBatch.from_arrays(columns, schema=floats)


def _refuse_hidden_sizes(messages: Any) -> None:
    """Refuse a stream with too many batches, or with columns that may be larger than they look."""
    for message in islice(iter(partial(next, messages, None), None), BATCHES):
        if message.type != RECORDS:
            raise BadInputError(
                "Dictionary-encoded columns are not accepted; send them as they are, or leave them out."
            )
        if _is_compressed(message.metadata):
            raise BadInputError("Compressed columns are not accepted; write the stream without compression.")
    if next(messages, None) is not None:
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


def write_csv(answer: Answer) -> bytes:
    """A line for each vector, with the name of its column first if it has one. An empty cell means NaN."""
    rows = answer.values.reshape(len(answer.values), -1).tolist()
    lines = [",".join("" if isnan(number) else repr(number) for number in row) for row in rows]
    if answer.question.names is None:
        return "\n".join([",".join(answer.question.options.labels()), *lines, ""]).encode()
    named = [f"{_cell(name)},{line}" for name, line in zip(answer.question.names, lines, strict=True)]
    return "\n".join(["column," + ",".join(answer.question.options.labels()), *named, ""]).encode()


def _cell(name: str) -> str:
    """A name as a cell of a CSV file, quoted where that is needed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow([name])
    return text.getvalue()[:-2]


def write_arrow(file: bool, answer: Answer) -> bytes:
    """The answers as an Arrow table."""
    pa = arrow()
    values = answer.values.reshape(len(answer.values), -1)
    columns = [] if answer.question.names is None else [pa.array(answer.question.names, pa.string())]
    columns += [pa.array(np.ascontiguousarray(column)) for column in values.T]
    return _stored(
        pa, file, columns, ["column"] * (answer.question.names is not None) + answer.question.options.labels()
    )


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
