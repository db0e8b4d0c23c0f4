"""Where an extraction keeps what it has read until the lake takes it: Parquet files by day in a temporary folder.

Rows leave memory in chunks, so that a log of any size can be read. What a row means is decided before, which of two
equal requests stays is decided after.
"""

from collections import defaultdict
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from warmup_tasks.items import Feedback
from warmup_tasks.lake.schemas import FEEDBACK, QUARANTINE, REQUESTS, REQUESTS_SCHEMA
from warmup_tasks.sources.base import DEFAULT_MODEL, Request
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.reading import Line

CHUNK_ROWS = 2_000
CHUNK_BYTES = 64 * 2**20
_STAGED_FEEDBACK = FEEDBACK.append(pa.field("source_file", pa.string())).append(pa.field("source_line", pa.int64()))


class _Shelf:
    """The rows of one kind, by day (None: not by day)."""

    def __init__(self, folder: Path, kind: str, schema: pa.Schema) -> None:
        self.folder, self.kind, self.schema = folder, kind, schema
        self.rows: dict[date | None, list[dict[str, Any]]] = defaultdict(list)
        self.files: dict[date | None, list[str]] = defaultdict(list)
        self.held_rows = self.held_bytes = 0

    def add(self, day: date | None, row: dict[str, Any], size: int) -> None:
        self.rows[day].append(row)
        self.held_rows += 1
        self.held_bytes += size
        if self.held_rows >= CHUNK_ROWS or self.held_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        for day, rows in self.rows.items():
            path = self.folder / f"{self.kind}-{day}-{len(self.files[day]):06d}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=self.schema), path, compression="lz4")
            self.files[day].append(str(path))
        self.rows.clear()
        self.held_rows = self.held_bytes = 0


class Staging:
    """The staged rows of one extraction. Call :meth:`finish` before reading the files."""

    def __init__(self, folder: Path) -> None:
        self._requests = _Shelf(folder, "requests", REQUESTS)
        self._feedback = _Shelf(folder, "feedback", _STAGED_FEEDBACK)
        self._quarantine = _Shelf(folder, "quarantine", QUARANTINE)

    def add_request(self, request: Request, model: str | None, source_format: str, file: str, line: Line) -> None:
        """Stage one request; ``model`` stands in where the log names none."""
        row = {name: getattr(request, name, None) for name in REQUESTS.names}
        row |= {
            "schema_version": REQUESTS_SCHEMA,
            "request_id": request.identity(),
            "model": request.model or model or DEFAULT_MODEL,
            "prompt_sha256": request.prompt.sha256,
            "body_json": request.prompt.body_json,
            "source_format": source_format,
            "source_file": file,
            "source_line": line.number,
        }
        self._requests.add(request.time.date(), row, line.size_bytes)

    def add_feedback(self, feedback: Feedback, file: str, line: Line) -> None:
        """Stage one feedback row."""
        row = {**feedback.model_dump(), "source_file": file, "source_line": line.number}
        self._feedback.add(_day(feedback.time), row, line.size_bytes)

    def add_fault(self, fault: Fault, detail: str, file: str, line: Line) -> None:
        """Stage one quarantine row; the record itself stays in its file."""
        row = {
            "source_file": file,
            "source_line": line.number,
            "reason": str(fault),
            "detail": detail,
            "raw_sha256": line.digest(),
            "raw_bytes": line.size_bytes,
        }
        self._quarantine.add(None, row, 200)

    def finish(self) -> None:
        """Write what is still in memory."""
        for shelf in (self._requests, self._feedback, self._quarantine):
            shelf.flush()

    def request_files(self) -> dict[date, list[str]]:
        """Return day → staged files of requests, days in order."""
        return {day: files for day, files in sorted(self._requests.files.items(), key=str) if day}

    def feedback_files(self) -> dict[date, list[str]]:
        """Return day → staged files of feedback, days in order."""
        return {day: files for day, files in sorted(self._feedback.files.items(), key=str) if day}

    def quarantine_files(self) -> list[str]:
        """Return the staged files of quarantine rows."""
        return self._quarantine.files.get(None, [])


def _day(moment: datetime) -> date:
    return moment.date()
