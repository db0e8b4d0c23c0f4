"""Rows that are too many for memory: runs of sorted rows in files, and the gathering of rows by where they stand.

A run is an Arrow file that was staged, or a Parquet file of the lake. Both hold their rows nearly in the order in which
they are asked for, so each part of a file is read about once, and little is held: the parts that were used last.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

HELD_BYTES = 64 * 2**20
PART_BYTES = 2**18
REPEATED = ("tenant", "model", "adapter", "cache_salt", "request_type", "source_format", "source_file")
"""Columns that hold few different values."""
_STRETCH_ROWS = 16  # rows that stand side by side; where it is fewer on average, they are taken one by one

Numbers = npt.NDArray[np.int64]


class StagedRun(NamedTuple):
    """Rows that were staged.

    Attributes:
        number: of the run.
        path: of an Arrow file with the rows.
        keys_path: of a Parquet file with the same rows without their large columns, for statements.
        starts: number of the first row of each part of the Arrow file, and of the row after all.
    """

    number: int
    path: str
    keys_path: str
    starts: list[int]


class Run(Protocol):
    """A file of rows in parts."""

    starts: Numbers

    def part(self, number: int) -> pa.Table:
        """Return one part."""


class ArrowRun:
    """A staged file; its parts are record batches."""

    def __init__(self, staged: StagedRun, schema: pa.Schema) -> None:
        self._path, self._schema = staged.path, schema
        self._reader: Any = None
        self.starts = np.array(staged.starts, dtype=np.int64)

    def part(self, number: int) -> pa.Table:
        """Return one record batch."""
        if self._reader is None:
            self._reader = pa.ipc.open_file(pa.OSFile(self._path, "rb"))
        return pa.Table.from_batches([self._reader.get_batch(number)]).select(self._schema.names)


class ParquetRun:
    """A file of the lake; its parts are row groups."""

    def __init__(self, file: Any, schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self.starts = np.cumsum([0, *rows], dtype=np.int64)

    def part(self, number: int) -> pa.Table:
        """Return one row group."""
        return self._file.read_row_group(number, columns=self._schema.names).cast(self._schema)


class RunWriter:
    """Writes one staged run.

    Beside the rows it writes their keys: each row's small columns, whether it has a value in the large ones (an empty
    text then), and where it stands: ``run``, the run's number, and ``row``, its own.
    """

    def __init__(self, folder: Path, name: str, number: int, schema: pa.Schema, large: Sequence[str] = ()) -> None:
        self.staged = StagedRun(number, str(folder / f"{name}.arrow"), str(folder / f"{name}.keys.parquet"), [0])
        self._large = large
        self._sink = pa.OSFile(self.staged.path, "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._keys = pq.ParquetWriter(
            self.staged.keys_path,
            keys_schema(schema, large),
            compression="none",
            use_dictionary=[name for name in REPEATED if name in schema.names],
            write_statistics=False,
        )

    def write_table(self, table: pa.Table) -> None:
        """Write rows; the file is one sorted run if they come so."""
        first, rows = self.staged.starts[-1], table.num_rows
        for batch in table.to_batches(max(1, PART_BYTES * rows // max(1, table.nbytes))):
            self._writer.write_batch(batch)
            self.staged.starts.append(self.staged.starts[-1] + batch.num_rows)
        present = [pc.if_else(pc.is_valid(table[name]), "", pa.scalar(None, pa.string())) for name in self._large]
        run = pa.repeat(pa.scalar(self.staged.number, pa.int64()), rows)
        small = [
            column for name, column in zip(table.column_names, table.columns, strict=True) if name not in self._large
        ]
        columns = [*small, *present, run, pa.array(np.arange(first, first + rows))]
        self._keys.write_table(pa.Table.from_arrays(columns, schema=keys_schema(table.schema, self._large)))

    def close(self) -> None:
        """End the files."""
        self._keys.close()
        self._writer.close()
        self._sink.close()


def keys_schema(schema: pa.Schema, large: Sequence[str] = ()) -> pa.Schema:
    """Return the columns of the keys of rows with the given schema."""
    small = [field for field in schema if field.name not in large]
    marks = [pa.field(name, pa.string()) for name in large]
    return pa.schema([*small, *marks, pa.field("run", pa.int64()), pa.field("row", pa.int64())])


class Order:
    """Where the rows of a day stand, in their new order: ``run``, ``row`` and ``new_id``, kept in a file."""

    def __init__(self, path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        """Keep the batches in a new file."""
        self._path, self._starts = path, [0]
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                self._starts.append(self._starts[-1] + batch.num_rows)

    @property
    def rows(self) -> int:
        """How many they are."""
        return self._starts[-1]

    def part(self, first: int, count: int, at_once: int) -> Iterator[pa.RecordBatch]:
        """Yield ``count`` of them from ``first`` on, at most ``at_once`` together."""
        with pa.OSFile(str(self._path), "rb") as source:
            reader = pa.ipc.open_file(source)
            for number, start in enumerate(self._starts[:-1]):
                begin, end = max(first - start, 0), min(first + count, self._starts[number + 1]) - start
                if begin < end:
                    batch = reader.get_batch(number)
                    yield from (batch.slice(at, min(at_once, end - at)) for at in range(begin, end, at_once))


class Gatherer:
    """Gathers rows out of runs."""

    def __init__(self, runs: Mapping[int, Run], schema: pa.Schema) -> None:
        self._runs, self._schema = runs, schema
        self._held: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._held_bytes = 0

    def gather(self, runs: Numbers, rows: Numbers) -> pa.Table:
        """Return the rows that stand there, in that order.

        Args:
            runs: number of the run of each row.
            rows: number of the row in it.
        """
        if len(rows) == 0:
            return self._schema.empty_table()
        breaks = np.flatnonzero((np.diff(runs) != 0) | (np.diff(rows) != 1)) + 1
        if len(rows) < _STRETCH_ROWS * len(breaks):
            return self._pick(runs, rows)
        bounds = [0, *breaks.tolist(), len(rows)]
        pieces: list[pa.Table] = []
        for start, end in pairwise(bounds):
            pieces += self._stretch(int(runs[start]), int(rows[start]), end - start)
        return pa.concat_tables(pieces)

    def _stretch(self, run: int, row: int, count: int) -> Iterator[pa.Table]:
        starts = self._runs[run].starts
        while count:
            number = int(np.searchsorted(starts, row, side="right")) - 1
            piece = self._part(run, number).slice(row - int(starts[number]), count)
            yield piece
            row, count = row + piece.num_rows, count - piece.num_rows

    def _pick(self, runs: Numbers, rows: Numbers) -> pa.Table:
        order = np.lexsort((rows, runs))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return pa.concat_tables(self._picked(runs[order], rows[order])).take(pa.array(back))

    def _picked(self, runs: Numbers, rows: Numbers) -> Iterator[pa.Table]:
        for run in np.unique(runs).tolist():
            starts, mine = self._runs[run].starts, rows[runs == run]
            parts = np.searchsorted(starts, mine, side="right") - 1
            for number in np.unique(parts).tolist():
                yield self._part(run, number).take(pa.array(mine[parts == number] - starts[number]))

    def _part(self, run: int, number: int) -> pa.Table:
        key = (run, number)
        if key not in self._held:
            self._held[key] = self._runs[run].part(number)
            self._held_bytes += self._held[key].nbytes
        self._held.move_to_end(key)
        while self._held_bytes > HELD_BYTES and len(self._held) > 1:
            self._held_bytes -= self._held.popitem(last=False)[1].nbytes
        return self._held[key]
