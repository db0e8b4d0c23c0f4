"""A log becomes day partitions of requests and feedback, and a quarantine; nothing is lost, nothing stands twice.

Here the parts are put in order: what is known of the log, files, formats, staging, merging, and the account of it all.
Running it again reads what was added since, and changes nothing where nothing was.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from warmup_tasks import __version__
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import digest
from warmup_tasks.lake import Lake
from warmup_tasks.sources import account, logbook, reading, registry
from warmup_tasks.sources.account import ExtractionSummary, FileRead
from warmup_tasks.sources.log_reading import FileTask, LogReading, Progress
from warmup_tasks.sources.logbook import Account, Edge, Entry
from warmup_tasks.sources.merging import Extent, Merger
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.reader import Job
from warmup_tasks.sources.staging import Staged
from warmup_tasks.sources.tabling import Tabling

_NO_OPTIONS = ReadOptions()
_MERGE_MEMORY = "256MB"


def extract(
    lake: Lake,
    log: str,
    log_format: str = registry.AUTO,
    *,
    default_model: str | None = None,
    options: ReadOptions = _NO_OPTIONS,
    progress: Progress | None = None,
    max_line_bytes: int = reading.MAX_LINE_BYTES,
    is_incremental: bool = True,
    workers: int | None = None,
) -> ExtractionSummary:
    """Read a log into the lake's day partitions.

    Args:
        lake: gets ``requests/<day>``, ``feedback/<day>``, and ``quarantine/`` and ``logs/<digest of the log's place>``.
        log: a file, a folder or a glob, local or an fsspec URI; plain, gzip or zstd; formats may be mixed.
        log_format: a name from ``registry.formats()``; ``auto`` recognises each file by its first lines.
        default_model: stands in where the log names no model.
        options: what the log does not say itself: the epoch of relative clocks, prompts for block hashes.
        progress: called with bytes read and bytes in all, perhaps from another thread.
        max_line_bytes: longer lines are quarantined.
        is_incremental: go on where the last reading of this log with the same options ended; else read all of it.
        workers: how many threads or processes read; None: as many as there are cores, if there is enough to read.

    Raises:
        ConfigurationError: nothing to read, an unknown format name, or no file in a known format.
        RetryLaterError: a reading process died.
    """
    place = digest({"log": str(Path(log).resolve()) if "://" not in log else log})[:16]
    files = reading.discover(log)
    read_as = _read_as(log_format, default_model, options, max_line_bytes)
    entries = logbook.load(lake, place)
    plans = logbook.plan(files, entries if is_incremental else [], read_as)
    tasks = [FileTask(file, plan) for file, plan in zip(files, plans, strict=True)]
    for task in tasks:
        task.choose(log_format, options)
    if all(task.format is None for task in tasks):
        grounds = "; ".join(f"{task.file.name}: {task.ground}" for task in tasks[:3])
        raise ConfigurationError(
            f"log: no file of {reading.shown(log)!r} is in a known format ({grounds}); "
            f"name one of {', '.join(registry.formats()[1:])}"
        )
    with tempfile.TemporaryDirectory(prefix="warmup-extract-") as folder:
        job = Job(Path(folder), Tabling(default_model, options.hash_prompts), max_line_bytes)
        staged = LogReading(tasks, job, progress).run(workers)
        extent = Extent(
            closed={task.file.name: task.lines for task in tasks if task.plan.how != "skip"},
            known=logbook.known_rows([(task.file.name, task.plan.entry) for task in tasks]),
            former=[(task.file.name, name) for task in tasks for name in task.former_names],
            kept=[(t.file.name, t.plan.entry.file, t.plan.entry.lines) for t in tasks if t.plan.entry is not None],
        )
        merger = Merger(lake, extent, folder, _MERGE_MEMORY)
        parts = _merge(merger, staged)
        quarantine = merger.quarantine(place, staged.quarantine, reading.shown(log))
    return _close(lake, place, tasks, parts, read_as, quarantine)


@dataclass
class _Parts:
    """What was counted in one file: in lines with an end, in a last one without, and what gave way of it."""

    closed: list[Account] = field(default_factory=list)
    open: list[Account] = field(default_factory=list)
    displaced: list[Account] = field(default_factory=list)


def _merge(merger: Merger, staged: Staged) -> dict[str, _Parts]:
    """Bring what was staged into the lake, and return what it is, file by file."""
    parts: dict[str, _Parts] = {}

    def part(counts: dict[str, Any]) -> list[Account]:
        of_file = parts.setdefault(str(counts["file"]), _Parts())
        return (
            of_file.displaced if counts.get("is_displaced") else of_file.open if counts["is_open"] else of_file.closed
        )

    for (file, is_open), tally in staged.tallies.items():
        part({"file": file, "is_open": is_open}).append(Account.of_tally(tally))
    for day, counts in _merge_requests(merger, staged):
        part(counts).append(Account.of_requests(day, counts))
    for day, files in staged.feedback.items():
        for counts in merger.feedback(day, files):
            part(counts).append(Account.of_feedback(day, counts))
    return parts


def _merge_requests(merger: Merger, staged: Staged) -> Iterator[tuple[date, dict[str, Any]]]:
    """Merge one day after the other, each by all cores: DuckDB crashes where two threads open and bind at once."""
    for day, runs in staged.requests.items():
        yield from ((day, counts) for counts in merger.requests(day, runs))


def _close(
    lake: Lake, place: str, tasks: Sequence[FileTask], parts: dict[str, _Parts], read_as: str, quarantine: str | None
) -> ExtractionSummary:
    """Keep what is known of the log now, and return the account."""
    entries, files, wholes, nows = [], [], [], []
    for task in tasks:
        found = parts.get(task.file.name, _Parts())
        before = [task.plan.entry.account] if task.plan.entry is not None else []
        entry = _entry(task, Account.sum([*before, *found.closed, *found.displaced]), read_as)
        if task.file.can_go_on:
            entries.append(entry)
        now = Account.sum([*found.closed, *found.open])
        whole = Account.sum([entry.account, *found.open])
        notes = [*entry.notes, *account.on_prompts(entry.format, whole)]
        read = FileRead(
            file=entry.file, format=entry.format, ground=entry.ground, records=whole.records, notes=notes,
            records_now=now.records,
        )  # fmt: skip
        files.append(read)
        wholes.append(whole)
        nows.append(now)
    logbook.save(lake, place, entries)
    known = {row for task in tasks if task.plan.entry is not None for row in task.plan.entry.account.feedback_rows}
    whole = Account.sum(wholes)
    refs = [lake.latest("requests", f"{day}") for day in whole.days]
    refs += [lake.latest("feedback", f"{day}") for day in whole.feedback_days]
    return account.summarise(
        whole, Account.sum(nows), known, files, [ref for ref in (*refs, quarantine) if ref is not None]
    )


def _entry(task: FileTask, counted: Account, read_as: str) -> Entry:
    before = task.plan.entry
    if before is not None and task.plan.how == "skip":
        entry = before
    else:
        head = Edge.of(task.head)
        seam = Edge.of(task.tail)
        if before is not None and before.content_bytes == task.content_bytes:
            seam = Edge(before.seam_sha256, before.seam_bytes)
        entry = Entry(
            file=task.file.name,
            format=task.format,
            ground=task.ground,
            read_as=read_as,
            size_bytes=task.file.size_bytes,
            content_bytes=task.content_bytes,
            lines=task.lines,
            is_finished=task.is_finished,
            head_sha256=head.sha256,
            head_bytes=head.size_bytes,
            seam_sha256=seam.sha256,
            seam_bytes=seam.size_bytes,
            notes=task.notes,
        )
    return entry.model_copy(update={"file": task.file.name, "former_names": task.former_names, "account": counted})


def _read_as(log_format: str, default_model: str | None, options: ReadOptions, max_line_bytes: int) -> str:
    """Return a digest of what decides what is read from a file, besides the file; another version reads anew."""
    rule = options.hash_prompts
    derived = rule and [rule.tokens_per_block, rule.vocabulary_size, sorted(rule.special_ids), rule.max_tokens]
    epoch = options.epoch and options.epoch.isoformat()
    return digest([__version__, log_format, default_model, epoch, options.zone, derived, max_line_bytes])
