"""Where an extraction keeps what it has read until the lake takes it: files by day in a temporary folder.

Rows leave memory in chunks, so that a log of any size can be read. What a row means is decided before, which of two
equal requests stays is decided after.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warmup_tasks.lake.schemas import QUARANTINE, REQUESTS
from warmup_tasks.sources.runs import RunWriter, StagedRun
from warmup_tasks.sources.tabling import STAGED_FEEDBACK, Tally

CHUNK_BYTES = 48 * 2**20
_MOST_OPEN = 64
_NEAR_ROWS = 2_000
_LARGE = ("body_json", "answer_text", "block_hashes")
_MOST_RUNS = 10**6  # of one process
_ORDER = [("time", "ascending"), ("request_id", "ascending")]

Part = tuple[str, bool]
"""A file's name, and whether the part is its last line without line end."""


@dataclass
class Staged:
    """What was staged: runs and files by day, and what became of the records of each part of a file."""

    requests: dict[date, list[StagedRun]] = field(default_factory=dict)
    feedback: dict[date, list[str]] = field(default_factory=dict)
    quarantine: list[str] = field(default_factory=list)
    tallies: dict[Part, Tally] = field(default_factory=dict)

    def add(self, other: "Staged") -> None:
        """Join what another process staged."""
        for day, runs in other.requests.items():
            self.requests.setdefault(day, []).extend(runs)
        for day, files in other.feedback.items():
            self.feedback.setdefault(day, []).extend(files)
        self.quarantine += other.quarantine
        for part, tally in other.tallies.items():
            self.tallies.setdefault(part, Tally()).add(tally)


class Staging:
    """The staged rows of one process; ``number`` tells it from others."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self._folder, self._number = folder, number
        self._runs: dict[date, list[StagedRun]] = defaultdict(list)
        self._files: dict[str, dict[date, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._requests = _Shelf(self._open_run, _sorted)
        self._feedback = _Shelf(lambda day, index: self._open_file("feedback", STAGED_FEEDBACK, day, index))
        self._quarantine = _Shelf(lambda day, index: self._open_file("quarantine", QUARANTINE, day, index))
        self._tallies: dict[Part, Tally] = defaultdict(Tally)

    def tally(self, file: str, is_open: bool) -> Tally:
        """Return the tally of a part."""
        return self._tallies[file, is_open]

    def add(self, requests: pa.Table, feedback: pa.Table | None = None, quarantine: pa.Table | None = None) -> None:
        """Stage rows."""
        self._requests.add_by_day(requests)
        if feedback is not None:
            self._feedback.add_by_day(feedback)
        if quarantine is not None:
            self._quarantine.add(date.min, quarantine)

    def finish(self) -> Staged:
        """Write what is still in memory and return everything."""
        for shelf in (self._requests, self._feedback, self._quarantine):
            shelf.finish()
        quarantine = self._files["quarantine"].get(date.min, [])
        return Staged(dict(self._runs), dict(self._files["feedback"]), quarantine, dict(self._tallies))

    def _open_run(self, day: date, index: int) -> RunWriter:
        number = self._number * _MOST_RUNS + index
        writer = RunWriter(self._folder, f"requests-{day}-{number}", number, REQUESTS, _LARGE)
        self._runs[day].append(writer.staged)
        return writer

    def _open_file(self, kind: str, schema: pa.Schema, day: date, index: int) -> Any:
        path = str(self._folder / f"{kind}-{day}-{self._number}-{index}.parquet")
        self._files[kind][day].append(path)
        return pq.ParquetWriter(path, schema, compression="lz4")


class _Shelf:
    """The rows of one kind, by day: a file each, as long as not too many days are open at once."""

    def __init__(
        self, open_writer: Callable[[date, int], Any], prepare: Callable[[pa.Table], pa.Table] = lambda table: table
    ) -> None:
        self._open_writer, self._prepare = open_writer, prepare
        self._tables: dict[date, list[pa.Table]] = defaultdict(list)
        self._held_bytes = self._opened = 0
        self._open: dict[date, Any] = {}

    def add_by_day(self, table: pa.Table) -> None:
        """Add rows that have a ``time``."""
        days = pc.cast(table["time"], pa.date32())
        different = pc.unique(days).to_pylist()
        for day in different:
            self.add(day, table if len(different) == 1 else table.filter(pc.equal(days, day)))

    def add(self, day: date, table: pa.Table) -> None:
        """Add rows of one day."""
        if table.num_rows:
            table = self._prepare(table)
            self._tables[day].append(table)
            self._held_bytes += table.nbytes
            if self._held_bytes >= CHUNK_BYTES:
                self._flush()

    def finish(self) -> None:
        """Write what is left."""
        self._flush()
        self._close()

    def _flush(self) -> None:
        for day, tables in self._tables.items():
            if day not in self._open:
                if len(self._open) >= _MOST_OPEN:
                    self._close()
                self._open[day] = self._open_writer(day, self._opened)
                self._opened += 1
            self._open[day].write_table(self._prepare(pa.concat_tables(tables)))
        self._tables.clear()
        self._held_bytes = 0

    def _close(self) -> None:
        for writer in self._open.values():
            writer.close()
        self._open.clear()


def _sorted(table: pa.Table) -> pa.Table:
    """Return rows in order; nearly so, where their parts are: to move texts takes longer than to find them."""
    order = pc.sort_indices(table, sort_keys=_ORDER).to_numpy().astype(np.int64)
    farthest = np.abs(order - np.arange(len(order))).max(initial=0)
    near = 0 if table["time"].num_chunks == 1 else _NEAR_ROWS
    return table if farthest <= near else table.take(order)
