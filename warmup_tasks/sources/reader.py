"""Reading records into a staging: a block of lines, or whatever records a format finds in a file.

Here a batch goes from its format to rows and files; which process reads it is the business of ``pool.py``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from warmup_tasks.sources import blocks, tabling
from warmup_tasks.sources.base import Batch, BatchSource, Source
from warmup_tasks.sources.blocks import LineBlock
from warmup_tasks.sources.reading import MAX_LINE_BYTES, Line, Raw
from warmup_tasks.sources.staging import Staged, Staging
from warmup_tasks.sources.tabling import Tabling

RECORDS_AT_ONCE = 2_000
BYTES_AT_ONCE = 2**22


class Task(NamedTuple):
    """A block to read."""

    file: str
    source: Source
    block: LineBlock


@dataclass(frozen=True)
class Job:
    """What every process of an extraction knows.

    Attributes:
        folder: where it stages.
        tabling: how requests become rows.
        max_line_bytes: longer lines are quarantined.
        is_compiled: whether formats that read columns get them by compiled loops, which takes a second to load.
    """

    folder: Path
    tabling: Tabling = field(default_factory=Tabling)
    max_line_bytes: int = MAX_LINE_BYTES
    is_compiled: bool = False


class Reader:
    """Reads blocks and records into a staging of its own."""

    def __init__(self, job: Job, number: int = 0) -> None:
        self._job = job
        self._staging = Staging(job.folder, number)
        self._index: Any = None

    def read_block(self, task: Task) -> None:
        """Read the lines of a block, one record each."""
        block, limit = task.block, self._job.max_line_bytes
        can_be_indexed = block.lost is None and not block.is_open and len(block.data) <= limit
        if self._job.is_compiled and isinstance(task.source, BatchSource) and can_be_indexed:
            parsed = blocks.parse_lines(self._read_indexed(task), limit, is_open=False)
        else:
            parsed = blocks.parse(block, limit)
        self._stage(task.source, task.file, parsed, is_open=block.is_open)

    def _read_indexed(self, task: Task) -> Iterator[tuple[int, bytes]]:
        """Read columns straight from the bytes of the lines; yield number and content of those that are left."""
        block, first = task.block, task.block.first_line
        from warmup_tasks.sources.line_index import LineIndex
        from warmup_tasks.sources.spans import SpanBatch

        index = self._index = self._index or LineIndex()
        index.read(block.data, block.line_ends)
        batch = SpanBatch(index)
        task.source.read_batch(batch)
        tally = self._staging.tally(task.file, False)
        numbers = np.arange(first, first + block.line_ends)
        requests = self._job.tabling.requests(batch, numbers, task.source.name, task.file, tally)
        self._staging.add(requests)
        odd = np.flatnonzero(batch.is_odd).tolist()
        tally.not_requests.update(ground for place, ground in batch.not_requests.items() if not batch.is_odd[place])
        return ((first + place, index.line(place)) for place in odd)

    def read_records(self, source: Source, file: str, raws: Iterable[Raw]) -> None:
        """Read records that do not stand by themselves on a line each."""
        for some in _in_batches(raws):
            self._stage(source, file, some, is_open=False)

    def add_faults(self, file: str, lines: Iterable[Line]) -> None:
        """Quarantine lines that nothing can read."""
        for line in lines:
            self._stage(None, file, blocks.Parsed([], [], [], [line]), is_open=False)

    def finish(self) -> Staged:
        """Return what was staged."""
        return self._staging.finish()

    def _stage(self, source: Source | None, file: str, parsed: blocks.Parsed, *, is_open: bool) -> None:
        tally = self._staging.tally(file, is_open)
        batch = Batch(parsed.records)
        if source is not None:
            source.read_batch(batch)
        requests = self._job.tabling.requests(batch, parsed.numbers, source.name if source else "", file, tally)
        refused = tabling.refused(batch, lambda place: _line(parsed, place))
        self._staging.add(
            requests,
            tabling.feedback(batch, parsed.numbers, file, tally),
            tabling.quarantine([*parsed.faults, *refused], file, tally),
        )
        tally.not_requests.update(batch.not_requests.values())


def _line(parsed: blocks.Parsed, place: int) -> Line:
    data = parsed.lines[place]
    return Line(parsed.numbers[place], data, len(data))


def _in_batches(raws: Iterable[Raw]) -> Iterator[blocks.Parsed]:
    held, held_bytes = blocks.Parsed([], [], [], []), 0
    for raw in raws:
        if raw.line.fault is not None:
            held.faults.append(raw.line)
        else:
            held.records.append(raw.value)
            held.numbers.append(raw.line.number)
            held.lines.append(raw.line.data)
        held_bytes += raw.line.size_bytes
        if len(held.records) + len(held.faults) >= RECORDS_AT_ONCE or held_bytes >= BYTES_AT_ONCE:
            yield held
            held, held_bytes = blocks.Parsed([], [], [], []), 0
    yield held
