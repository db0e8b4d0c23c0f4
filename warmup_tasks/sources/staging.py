"""Where an extraction keeps what it has read until the lake takes it: Parquet files by day in a temporary folder.

Rows leave memory in chunks, so that a log of any size can be read. What a row means is decided before, which of two
equal requests stays is decided after.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from warmup_tasks.lake.schemas import QUARANTINE, REQUESTS
from warmup_tasks.sources.tabling import STAGED_FEEDBACK, Tally

CHUNK_BYTES = 24 * 2**20
_MOST_OPEN = 64
_REPEATED = ["tenant", "model", "adapter", "request_type", "session_id", "source_format", "source_file", "reason"]

Part = tuple[str, bool]
"""A file's name, and whether the part is its last line without line end."""


@dataclass
class Staged:
    """What was staged: files by day, and what became of the records of each part of a file."""

    requests: dict[date, list[str]] = field(default_factory=dict)
    feedback: dict[date, list[str]] = field(default_factory=dict)
    quarantine: list[str] = field(default_factory=list)
    tallies: dict[Part, Tally] = field(default_factory=dict)

    def add(self, other: "Staged") -> None:
        """Join what another process staged."""
        for mine, theirs in ((self.requests, other.requests), (self.feedback, other.feedback)):
            for day, files in theirs.items():
                mine.setdefault(day, []).extend(files)
        self.quarantine += other.quarantine
        for part, tally in other.tallies.items():
            self.tallies.setdefault(part, Tally()).add(tally)


class Staging:
    """The staged rows of one process."""

    def __init__(self, folder: Path, name: str = "0", compression: str = "lz4") -> None:
        self._requests = _Shelf(folder, f"requests-{name}", REQUESTS, compression)
        self._feedback = _Shelf(folder, f"feedback-{name}", STAGED_FEEDBACK, compression)
        self._quarantine = _Shelf(folder, f"quarantine-{name}", QUARANTINE, compression)
        self._tallies: dict[Part, Tally] = defaultdict(Tally)

    def tally(self, file: str, is_open: bool) -> Tally:
        """Return the tally of a part."""
        return self._tallies[file, is_open]

    def add(self, requests: pa.Table, feedback: pa.Table, quarantine: pa.Table) -> None:
        """Stage rows."""
        self._requests.add_by_day(requests)
        self._feedback.add_by_day(feedback)
        self._quarantine.add(date.min, quarantine)

    def finish(self) -> Staged:
        """Write what is still in memory and return everything."""
        (quarantine,) = self._quarantine.finish().values() or ([],)
        return Staged(self._requests.finish(), self._feedback.finish(), quarantine, dict(self._tallies))


class _Shelf:
    """The rows of one kind, by day: a file each, as long as not too many days are open at once."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema, compression: str) -> None:
        self._folder, self._name, self._schema, self._compression = folder, name, schema, compression
        self._tables: dict[date, list[pa.Table]] = defaultdict(list)
        self._held_bytes = 0
        self._open: dict[date, Any] = {}
        self._files: dict[date, list[str]] = defaultdict(list)

    def add_by_day(self, table: pa.Table) -> None:
        """Add rows that have a ``time``."""
        days = pc.cast(table["time"], pa.date32())
        different = pc.unique(days).to_pylist()
        for day in different:
            self.add(day, table if len(different) == 1 else table.filter(pc.equal(days, day)))

    def add(self, day: date, table: pa.Table) -> None:
        """Add rows of one day."""
        if table.num_rows:
            self._tables[day].append(table)
            self._held_bytes += table.nbytes
            if self._held_bytes >= CHUNK_BYTES:
                self._flush()

    def finish(self) -> dict[date, list[str]]:
        """Write what is left and return day → files."""
        self._flush()
        self._close()
        return {day: self._files[day] for day in sorted(self._files)}

    def _flush(self) -> None:
        for day, tables in self._tables.items():
            self._writer(day).write_table(pa.concat_tables(tables))
        self._tables.clear()
        self._held_bytes = 0

    def _writer(self, day: date) -> Any:
        if day not in self._open:
            if len(self._open) >= _MOST_OPEN:
                self._close()
            path = self._folder / f"{self._name}-{day}-{len(self._files[day])}.parquet"
            repeated = [name for name in _REPEATED if name in self._schema.names]
            self._open[day] = pq.ParquetWriter(
                path, self._schema, compression=self._compression, use_dictionary=repeated
            )
            self._files[day].append(str(path))
        return self._open[day]

    def _close(self) -> None:
        for writer in self._open.values():
            writer.close()
        self._open.clear()
