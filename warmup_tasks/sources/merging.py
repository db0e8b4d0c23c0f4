"""Staged rows become day partitions: every request once, whatever was read before and in whatever order.

The decisions stand in ``sql/sources``; here they are run and published, again when another extraction came first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from warmup_tasks.lake import Lake, queries
from warmup_tasks.lake.schemas import FEEDBACK, QUARANTINE, REQUESTS
from warmup_tasks.resources import sql
from warmup_tasks.sources.runs import ArrowRun, Gatherer, Order, ParquetRun, Run, StagedRun, keys_schema

_FILE_ROWS, _ORDER_ROWS = 2**18, 2**15
_GATHERED_BYTES, _FEWEST_ROWS, _MOST_ROWS = 16 * 2**20, 32, 2**14
_CLOSED = pa.schema([("file", pa.string()), ("lines", pa.int64())])
_KNOWN = pa.schema(
    [("file", pa.string()), ("name", pa.string()), ("first_line", pa.int64()), ("last_line", pa.int64())]
)
_FORMER = pa.schema([("file", pa.string()), ("name", pa.string())])
_KEPT = pa.schema([("file", pa.string()), ("name", pa.string()), ("lines", pa.int64())])


@dataclass(frozen=True)
class Extent:
    """Which lines are read now, and which were read before.

    Attributes:
        closed: file → lines with an end, of each file that was read now.
        known: file, the name that its rows have in the lake, first and last line, of what was counted before.
        former: file and a name that it had before.
        kept: file, the name that its rows have in the quarantine, last line, of files not read from their beginning.
    """

    closed: Mapping[str, int]
    known: Sequence[tuple[str, str, int, int]]
    former: Sequence[tuple[str, str]]
    kept: Sequence[tuple[str, str, int]]


@dataclass(frozen=True)
class Merger:
    """Merges into one lake, with bounded memory.

    Attributes:
        lake: where to.
        extent: which lines the staged rows stand for.
        spill_folder: where DuckDB may spill.
        memory_limit: of each DuckDB.
    """

    lake: Lake
    extent: Extent
    spill_folder: str
    memory_limit: str

    def requests(self, day: date, staged: Sequence[StagedRun]) -> list[dict[str, Any]]:
        """Merge one day's staged requests; return ``count_requests``' rows.

        DuckDB sees everything but the prompts and answers, which may be larger than memory; it says which rows stay and
        in which order, and they are gathered by where they stand.
        """
        while True:
            parent = self.lake.latest("requests", f"{day}")
            with self._connect() as connection:
                queries.add_view(connection, "rows_staged", [run.keys_path for run in staged])
                _add_stored(connection, self.lake.files(parent, "requests") if parent else [])
                queries.add_view(connection, "closed", _table(self.extent.closed.items(), _CLOSED))
                queries.add_view(connection, "known", _table(self.extent.known, _KNOWN))
                queries.add_view(connection, "former", _table(self.extent.former, _FORMER))
                connection.sql(sql("sources/repeated_ids")).create("repeated")
                connection.sql(sql("sources/rank_requests")).create("ranking")
                counts: list[dict[str, Any]] = queries.run(connection, sql("sources/count_requests"), {}).to_pylist()
                found = connection.sql(sql("sources/order_requests")).to_arrow_reader(_ORDER_ROWS)
                order = Order(Path(self.spill_folder) / f"order-{day}.arrow", found, found.schema)
            if self.lake.publish_onto(parent, "requests", f"{day}", {"requests": self._readers(order, staged, parent)}):
                return counts

    def feedback(self, day: date, staged: Sequence[str]) -> list[dict[str, Any]]:
        """Merge one day's staged feedback; return ``count_feedback``'s rows."""
        while True:
            parent = self.lake.latest("feedback", f"{day}")
            with self._connect() as connection:
                queries.add_view(connection, "rows_staged", staged)
                queries.add_view(connection, "rows_stored", self._stored(parent, "feedback", FEEDBACK))
                queries.add_view(connection, "closed", _table(self.extent.closed.items(), _CLOSED))
                counts: list[dict[str, Any]] = queries.run(connection, sql("sources/count_feedback"), {}).to_pylist()
                merged = queries.stream(connection, sql("sources/merge_feedback"), FEEDBACK)
                if self.lake.publish_onto(parent, "feedback", f"{day}", {"feedback": merged}):
                    return counts

    def quarantine(self, place: str, staged: Sequence[str], log: str) -> str | None:
        """Publish a log's quarantine: what was read now, and what still stands; return the reference.

        A log without faults gets a partition only where an older reading left one.
        """
        stored = self.lake.latest("quarantine", place)
        if not staged and stored is None:
            return None
        with self._connect() as connection:
            queries.add_view(connection, "rows_staged", staged or QUARANTINE.empty_table())
            queries.add_view(connection, "rows_stored", self._stored(stored, "quarantine", QUARANTINE))
            queries.add_view(connection, "kept", _table(self.extent.kept, _KEPT))
            rows = queries.stream(connection, sql("sources/list_quarantine"), QUARANTINE)
            return self.lake.publish("quarantine", place, {"quarantine": rows}, {"log": log})

    def _connect(self) -> Any:
        """Return a DuckDB; what Arrow keeps of rows that are gone goes back first, so that both do not add up."""
        pa.default_memory_pool().release_unused()
        return self.lake.connect(memory_limit=self.memory_limit, spill_folder=self.spill_folder)

    def _readers(self, order: Order, staged: Sequence[StagedRun], parent: str | None) -> list[pa.RecordBatchReader]:
        """Return the rows in their order, in readers that stand for a file each."""
        parts = range(0, max(1, order.rows), _FILE_ROWS)
        return [pa.RecordBatchReader.from_batches(REQUESTS, self._rows(order, at, staged, parent)) for at in parts]

    def _rows(
        self, order: Order, first: int, staged: Sequence[StagedRun], parent: str | None
    ) -> Iterator[pa.RecordBatch]:
        stored = self.lake.open_files(parent, "requests") if parent else []
        runs: dict[int, Run] = {run.number: ArrowRun(run, REQUESTS) for run in staged}
        runs |= {-number: ParquetRun(file, REQUESTS) for number, file in enumerate(stored, start=1)}
        gatherer = Gatherer(runs, REQUESTS)
        for addresses in order.part(first, _FILE_ROWS, _rows_at_once(staged)):
            table = gatherer.gather(addresses["run"].to_numpy(), addresses["row"].to_numpy())
            if addresses["new_id"].null_count < len(addresses):
                ids = pc.coalesce(addresses["new_id"], table["request_id"].combine_chunks())
                table = table.set_column(table.schema.get_field_index("request_id"), REQUESTS.field("request_id"), ids)
            yield from table.to_batches()

    def _stored(self, ref: str | None, table: str, schema: pa.Schema) -> pa.Table | Sequence[str]:
        return self.lake.files(ref, table) if ref else schema.empty_table()


def _add_stored(connection: Any, files: Sequence[str]) -> None:
    """Give the statements the rows of a stored partition, each with where it stands."""
    if not files:
        connection.register("rows_stored", keys_schema(REQUESTS).empty_table())
        return
    parts = [
        connection.read_parquet(file, file_row_number=True).project(
            f"* exclude (file_row_number), {-number}::bigint as run, file_row_number as row"
        )
        for number, file in enumerate(files, start=1)
    ]
    reduce(lambda one, other: one.union(other), parts).create_view("rows_stored")


def _rows_at_once(staged: Sequence[StagedRun]) -> int:
    size, rows = sum(Path(run.path).stat().st_size for run in staged), sum(run.starts[-1] for run in staged)
    return max(_FEWEST_ROWS, min(_MOST_ROWS, _GATHERED_BYTES * rows // max(1, size)))


def _table(rows: Any, schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema)
