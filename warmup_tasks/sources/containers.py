"""How records lie in a file: on lines, in the rows of a table (CSV, Parquet), or nested in JSON documents.

Here a file's container is told by its first bytes, and tables become records. What a record means is the business of
the formats.
"""

import csv
import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from warmup_tasks.sources.documents import Numbering, beginning
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.reading import DamagedFileError, Line, LogFile, Raw

HEAD_BYTES = 2**20
_HEAD_LINES = 64
_ENOUGH = 0.3  # of the first lines must be JSON objects; a few bad ones must not make a document of them
_PARQUET_MAGIC, _BOM = b"PAR1", b"\xef\xbb\xbf"
_COLUMN_NAME = re.compile(r"[A-Za-z_][\w.]*")
_LEAST_COLUMNS = 4
_BATCH_ROWS = 512


class Container(StrEnum):
    """The ways in which records lie in a file; each value is a word for people."""

    LINES = "lines"
    DOCUMENT = "records of a JSON document"
    CSV = "rows of a CSV table"
    PARQUET = "rows of a Parquet file"


def head(file: LogFile) -> bytes:
    """Return the first bytes of a file's decompressed content."""
    parts, size = [], 0
    try:
        for block in file.blocks():
            parts.append(block)
            size += len(block)
            if size >= HEAD_BYTES:
                break
    except DamagedFileError:
        pass  # reading the file says so; what came before it may be enough to know the format
    return b"".join(parts)[:HEAD_BYTES].removeprefix(_BOM)


def kind_of(first: bytes) -> Container:
    """Tell the container from a file's first bytes (see :func:`head`)."""
    if first.startswith(_PARQUET_MAGIC):
        return Container.PARQUET
    lines = [line for line in first.split(b"\n")[:_HEAD_LINES] if line.strip()]
    if not lines:
        return Container.LINES
    if first.lstrip()[:1] in (b"{", b"["):
        objects = sum(_is_object(line) for line in lines)
        return Container.LINES if objects >= _ENOUGH * len(lines) else Container.DOCUMENT
    return Container.CSV if _is_header(lines[0]) else Container.LINES


def first_records(file: LogFile, first: bytes) -> tuple[Container, list[dict[str, Any]]]:
    """Return a file's container and, where records do not lie on lines, the first of them (of a document: itself)."""
    kind = kind_of(first)
    if kind is Container.DOCUMENT:
        return kind, beginning(first)
    raws: Iterator[Raw] = iter(())
    if kind is Container.PARQUET:
        raws = parquet_records(file)
    elif kind is Container.CSV:
        raws = csv_records(iter([first[: first.rfind(b"\n") + 1] or first]), len(first))
    return kind, [raw.value for raw in islice(raws, _HEAD_LINES)]


def csv_records(blocks: Iterator[bytes], limit: int) -> Iterator[Raw]:
    """Yield the rows of a CSV file as records, empty cells left out; a quoted cell may hold line ends.

    Args:
        blocks: the content; its first row names the columns.
        limit: bytes that one cell may have.
    """
    csv.field_size_limit(max(limit, csv.field_size_limit()))
    numbers, lines = Numbering(), _CsvLines(blocks, limit)
    header: list[str] | None = None
    reader = csv.reader(lines, strict=True)
    while True:
        lines.begin_row()
        try:
            row = next(reader, None)
        except csv.Error:
            reader = csv.reader(lines, strict=True)  # whatever was open is given up; the next line begins a row
            yield numbers.fault(Fault.BAD_ROW, "quotes do not match, or a cell is too long", lines.row())
            continue
        except DamagedFileError as error:
            yield numbers.fault(error.fault, "what follows is lost", lines.row())
            return
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = row
        elif lines.fault is not None:
            yield numbers.fault(lines.fault, "", lines.row())
        elif len(row) != len(header):
            yield numbers.fault(Fault.BAD_ROW, f"{len(row)} cells for {len(header)} columns", lines.row())
        else:
            line = lines.row()
            cells = {name: cell for name, cell in zip(header, row, strict=True) if cell != ""}
            yield Raw(line._replace(number=numbers.next(line.number)), cells)


def parquet_records(file: LogFile) -> Iterator[Raw]:
    """Yield the rows of a Parquet file as records with plain JSON values; times become ISO texts in UTC."""
    numbers = Numbering()
    with file.fs.open(file.path, "rb") as handle:
        try:
            for batch in pq.ParquetFile(handle).iter_batches(_BATCH_ROWS):
                for row in _to_microseconds(batch).to_pylist(maps_as_pydicts="lossy"):
                    yield numbers.raw(_plain(row))
        except (pa.ArrowInvalid, OSError):
            yield numbers.fault(Fault.DAMAGED, "what follows is lost")


class _CsvLines:
    """The physical lines of a CSV file, one by one, and what the current row took of them."""

    def __init__(self, blocks: Iterator[bytes], limit: int) -> None:
        self._lines, self._number, self._limit = _physical_lines(blocks, limit), 0, limit
        self._first, self._taken = 1, [b""]
        self.fault: Fault | None = None

    def begin_row(self) -> None:
        """Forget the row before."""
        self._first, self._taken, self.fault = self._number + 1, [], None

    def row(self) -> Line:
        """Return the current row: its first line's number, and its bytes."""
        data = b"".join(self._taken)
        return Line(self._first, data, len(data))

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._number += 1
        self._taken.append(line)
        try:
            text = line.decode()
        except UnicodeDecodeError:
            self.fault = Fault.NOT_UTF8
            text = line.decode(errors="replace")
        if "\0" in text:
            self.fault = Fault.NUL_BYTE
        return text


def _physical_lines(blocks: Iterator[bytes], limit: int) -> Iterator[bytes]:
    held = bytearray()
    is_first = True
    for block in blocks:
        held += block.removeprefix(_BOM) if is_first else block
        is_first = False
        *whole, rest = bytes(held).split(b"\n") if b"\n" in block else [bytes(held)]
        if whole:
            yield from (line + b"\n" for line in whole)
            held = bytearray(rest)
        elif len(held) > 2 * limit:  # no line end far and wide: handed on in pieces, which the cell limit refuses
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _is_header(line: bytes) -> bool:
    names = [name.strip().strip('"') for name in line.decode(errors="replace").strip().split(",")]
    is_named = all(_COLUMN_NAME.fullmatch(name) for name in names)
    return len(names) >= _LEAST_COLUMNS and len(set(names)) == len(names) and is_named


def _to_microseconds(batch: Any) -> Any:
    """Nanoseconds would need pandas, and no request is timed to them."""
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz))
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns"
        else field
        for field in batch.schema
    ]
    return pa.Table.from_batches([batch]).cast(pa.schema(fields), safe=False)


def _plain(row: dict[str, Any]) -> Any:
    try:
        return orjson.loads(orjson.dumps(row, default=str))
    except TypeError:
        return None
