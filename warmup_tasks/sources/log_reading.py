"""The files of one log, each read by its format from where it is to be read: in blocks by several workers, or whole.

Here is kept how far each file was read. What was read before stands in ``logbook.py``, what becomes of records in
``reader.py``.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from warmup_tasks.sources import blocks, logbook, reading, registry
from warmup_tasks.sources.base import BatchSource, Source
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.logbook import EDGE_BYTES, EVERY_LINE, Plan
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.pool import Pool
from warmup_tasks.sources.reader import Job, Reader, Task
from warmup_tasks.sources.staging import Staged

Progress = Callable[[int, int], None]
_DATA_SUFFIXES = (".jsonl", ".ndjson", ".json")
_LARGE_BYTES = 2**26  # below, starting processes and loading compiled loops takes longer than they save
_COMPRESSION = 6  # a guess at how much more a compressed file holds


@dataclass
class FileTask:
    """One file of the log: from where it is read, by which format, and how far it came."""

    file: reading.LogFile
    plan: Plan
    source: Source | None = None
    format: str | None = None
    ground: str = ""
    head: bytes = b""
    tail: bytes = b""
    content_bytes: int = 0
    lines: int = EVERY_LINE
    is_finished: bool = True
    is_by_line: bool = False
    notes: list[str] = field(default_factory=list)

    def choose(self, log_format: str, options: ReadOptions) -> None:
        """Choose the format, the one that was chosen before where reading goes on."""
        entry = self.plan.entry
        if entry is not None:
            self.format, self.ground, self.notes = entry.format, entry.ground, entry.notes
            source = registry.named(entry.format) if entry.format is not None else None
            self.lines, self.content_bytes = entry.lines, entry.content_bytes
        else:
            source, self.ground = registry.choose(self.file, log_format)
            self.format = source.name if source is not None else None
        if self.plan.how != "skip":
            self.source = source.for_file(self.file, options) if source is not None else None
            self.is_by_line = self.source is not None and self.source.is_by_line
            if entry is None and self.is_by_line:
                self.lines = 0

    @property
    def former_names(self) -> list[str]:
        """Names that rows of the file have in the lake, but for the one that it has."""
        entry = self.plan.entry
        return sorted({*entry.former_names, entry.file} - {self.file.name}) if entry is not None else []

    def line_blocks(
        self, max_line_bytes: int, block_bytes: int, on_progress: Callable[[int], None]
    ) -> Iterator[blocks.LineBlock]:
        """Yield what is to be read, and keep how far that is."""
        content = self.file.blocks(on_progress, start=self.content_bytes)
        for block in blocks.line_blocks(
            content,
            max_line_bytes,
            first_line=self.lines + 1,
            offset=self.content_bytes,
            block_bytes=block_bytes,
        ):
            self.is_finished = not block.is_open
            if not block.is_open:
                self.content_bytes = block.end
                self.lines += block.line_ends
                self.tail = (self.tail + block.data[-EDGE_BYTES:])[-EDGE_BYTES:] if block.data else b""
            yield block

    def look_at_edges(self) -> None:
        """Keep the bytes by which the file is known again: its first ones, and the last ones of what is read whole."""
        self.head = logbook.content(self.file, 0, EDGE_BYTES) if self.file.can_go_on else b""
        if self.is_by_line or not self.file.can_go_on:
            return
        self.content_bytes = self.file.size_bytes
        if not self.file.is_compressed:
            start = max(0, self.content_bytes - EDGE_BYTES)
            self.tail = logbook.content(self.file, start, self.content_bytes - start)


class LogReading:
    """Reads the files of a log."""

    def __init__(self, tasks: Sequence[FileTask], job: Job, progress: Progress | None) -> None:
        self._tasks, self._job, self._progress = [task for task in tasks if task.plan.how != "skip"], job, progress
        self._total = sum(task.file.size_bytes for task in tasks)
        self._done = self._total - sum(task.file.size_bytes for task in self._tasks)

    def run(self, workers: int | None) -> Staged:
        """Read everything that is to be read: in blocks by several workers, the rest in this one."""
        for task in self._tasks:
            task.look_at_edges()
        by_line = [task for task in self._tasks if task.is_by_line]
        is_large = _size(by_line) >= _LARGE_BYTES
        count = workers if workers is not None else (_cores() if is_large else 1)
        reader, staged = Reader(self._job), Staged()
        for is_compiled in (True, False):
            tasks = [task for task in by_line if (is_large and isinstance(task.source, BatchSource)) == is_compiled]
            job = replace(self._job, is_compiled=is_compiled)
            if tasks and (count > 1 or is_compiled):
                first = 1 if is_compiled else count + 1
                with Pool(job, range(first, first + count)) as pool:
                    staged.add(pool.read(self._blocks(tasks, job)))
            else:
                for block in self._blocks(tasks, job):
                    reader.read_block(block)
        for task in self._tasks:
            if not task.is_by_line:
                self._read_whole(reader, task)
        staged.add(reader.finish())
        self._on_progress(0)
        return staged

    def _blocks(self, tasks: Sequence[FileTask], job: Job) -> Iterator[Task]:
        size = blocks.COLUMN_BYTES if job.is_compiled else blocks.BLOCK_BYTES
        for task in tasks:
            for block in task.line_blocks(job.max_line_bytes, size, self._on_progress):
                if task.source is not None:
                    yield Task(task.file.name, task.source, block)
            self._finish(task)

    def _read_whole(self, reader: Reader, task: FileTask) -> None:
        lines = reading.lines(task.file.blocks(self._on_progress), self._job.max_line_bytes)
        if task.source is not None:
            reader.read_records(task.source, task.file.name, task.source.records(lines))
            task.notes = task.source.notes()
        elif _is_data(task.file.name):
            unknown = (line._replace(fault=line.fault or Fault.NOT_RECOGNISED, detail=task.ground) for line in lines)
            reader.add_faults(task.file.name, unknown)
        self._finish(task)

    def _finish(self, task: FileTask) -> None:
        self._done += task.file.size_bytes
        self._on_progress(0)

    def _on_progress(self, bytes_of_file: int) -> None:
        if self._progress is not None:
            self._progress(self._done + bytes_of_file, self._total)


def _size(tasks: Sequence[FileTask]) -> int:
    """Return about how many bytes there are to read."""
    size = 0
    for task in tasks:
        is_compressed = task.file.is_compressed
        size += task.file.size_bytes * _COMPRESSION if is_compressed else task.file.size_bytes - task.content_bytes
    return size


def _cores() -> int:
    """Return on how many cores this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_data(name: str) -> bool:
    """Say whether a file that no format knows is lost data (each line is quarantined) or a bystander like a licence."""
    return name.removesuffix(".gz").removesuffix(".zst").endswith(_DATA_SUFFIXES)
