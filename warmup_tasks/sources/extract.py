"""A log becomes day partitions of requests and feedback, and a quarantine; nothing is lost, nothing stands twice.

Here the parts are put in order: files, formats, staging, merging, and the account of it all. Running it again changes
nothing and reports the same numbers.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import digest
from warmup_tasks.items import Feedback, Record
from warmup_tasks.lake import Lake
from warmup_tasks.sources import merging, reading, registry
from warmup_tasks.sources.base import NotARequest, Request, Source
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.staging import Staging

Progress = Callable[[int, int], None]
_DATA_SUFFIXES = (".jsonl", ".ndjson", ".json")
_NO_OPTIONS = ReadOptions()


class FileRead(Record):
    """What was read from one file; ``format`` None: no known one, and ``ground`` says what came nearest.

    ``notes`` are the format's own words: evidence beside the requests, what is missing, what would bring it.
    """

    file: str
    format: str | None
    ground: str
    records: int
    notes: list[str] = Field(default_factory=list)


class ExtractionSummary(Record):
    """The account of one extraction: no prompts, no salts.

    ``requests_read`` counts every record, and is always the sum of ``requests_usable``, ``feedback_rows``,
    ``rows_quarantined``, ``duplicates`` and ``not_a_request``. A row that the lake has already *from the same file and
    line* is usable again, not a duplicate; a duplicate is a row in whose place another line's row stays, be it in this
    log or in an overlapping one that was read before.
    """

    requests_read: int
    requests_usable: int
    usable_by_use: dict[str, int]
    feedback_rows: int
    rows_quarantined: int
    quarantined_by_reason: dict[str, int]
    duplicates: int
    prompts_too_long: int = 0
    not_a_request: int
    not_a_request_by_ground: dict[str, int]
    first_time: datetime | None
    last_time: datetime | None
    models: list[str]
    adapters: list[str]
    tenants: int
    salts: int
    files: list[FileRead]
    days: list[date]
    refs: list[str]


def extract(
    lake: Lake,
    log: str,
    log_format: str = registry.AUTO,
    *,
    default_model: str | None = None,
    options: ReadOptions = _NO_OPTIONS,
    progress: Progress | None = None,
    max_line_bytes: int = reading.MAX_LINE_BYTES,
) -> ExtractionSummary:
    """Read a log into the lake's day partitions.

    Args:
        lake: gets ``requests/<day>``, ``feedback/<day>`` and ``quarantine/<digest of the log's place>``.
        log: a file, a folder or a glob, local or an fsspec URI; plain, gzip or zstd; formats may be mixed.
        log_format: a name from ``registry.formats()``; ``auto`` recognises each file by its first lines.
        default_model: stands in where the log names no model.
        options: what the log does not say itself: the epoch of relative clocks, prompts for block hashes.
        progress: called with bytes read and bytes in all.
        max_line_bytes: longer lines are quarantined.

    Raises:
        ConfigurationError: nothing to read, an unknown format name, or no file in a known format.
    """
    files = reading.discover(log)
    choices = [registry.choose(file, log_format) for file in files]
    if all(choice.source is None for choice in choices):
        grounds = "; ".join(
            f"{file.name}: {choice.ground}" for file, choice in list(zip(files, choices, strict=True))[:3]
        )
        raise ConfigurationError(
            f"log: no file of {log!r} is in a known format ({grounds}); name one of {', '.join(registry.formats()[1:])}"
        )
    with tempfile.TemporaryDirectory(prefix="warmup-extract-") as folder:
        reader = _Reader(
            Staging(Path(folder)), default_model, options, max_line_bytes, progress, sum(f.size_bytes for f in files)
        )
        read = [reader.read(file, choice) for file, choice in zip(files, choices, strict=True)]
        reader.staging.finish()
        return _merge(lake, log, reader, read, folder)


class _Reader:
    """Reads files into the staging and keeps count of what is no request."""

    def __init__(
        self,
        staging: Staging,
        default_model: str | None,
        options: ReadOptions,
        max_line_bytes: int,
        progress: Progress | None,
        total_bytes: int,
    ) -> None:
        self.staging, self.default_model, self.max_line_bytes = staging, default_model, max_line_bytes
        self.options = options
        self.prompts_too_long = 0
        self.of_file: Counter[str] = Counter()
        self.progress, self.total_bytes, self.finished_bytes = progress, total_bytes, 0
        self.not_a_request: Counter[str] = Counter()

    def read(self, file: reading.LogFile, choice: registry.Choice) -> FileRead:
        records = 0
        notes: list[str] = []
        lines = reading.lines(file.blocks(self._on_progress), self.max_line_bytes)
        if choice.source is not None:
            source = choice.source.for_file(file, self.options)
            self.of_file.clear()
            for raw in source.records(lines):
                self._take(source, file.name, raw)
                records += 1
            notes = source.notes() + _on_prompts(source, self.of_file)
        elif _is_data(file.name):
            for line in lines:
                self.staging.add_fault(line.fault or Fault.NOT_RECOGNISED, choice.ground, file.name, line)
                records += 1
        self.finished_bytes += file.size_bytes
        self._on_progress(0)
        name = choice.source.name if choice.source else None
        return FileRead(file=file.name, format=name, ground=choice.ground, records=records, notes=notes)

    def _take(self, source: Source, file: str, raw: reading.Raw) -> None:
        line = raw.line
        if line.fault is not None:
            self.staging.add_fault(line.fault, line.detail, file, line)
            return
        try:
            mapped = source.read_record(raw.value)
        except BadRecordError as error:
            self.staging.add_fault(error.fault, error.detail, file, line)
            return
        if isinstance(mapped, Request):
            self._derive_prompt(mapped)
            self.of_file["requests"] += 1
            self.of_file["without prompt"] += mapped.prompt.body_json is None
            self.staging.add_request(mapped, self.default_model, source.name, file, line)
        elif isinstance(mapped, Feedback):
            self.staging.add_feedback(mapped, file, line)
        elif isinstance(mapped, NotARequest):
            self.not_a_request[mapped.ground] += 1

    def _derive_prompt(self, request: Request) -> None:
        rule = self.options.hash_prompts
        if rule is None or request.prompt.body_json is not None or request.block_tokens is None:
            return
        hashes = request.block_hashes if request.block_hashes is not None else []
        prompt = rule.prompt(hashes, request.block_tokens, request.input_tokens, request.identity())
        if prompt is None:
            self.prompts_too_long += 1
            self.of_file["too long"] += 1
        else:
            request.prompt = prompt
            request.request_type = "completion"

    def _on_progress(self, bytes_of_file: int) -> None:
        if self.progress is not None:
            self.progress(self.finished_bytes + bytes_of_file, self.total_bytes)


def _on_prompts(source: Source, of_file: Counter[str]) -> list[str]:
    """Say how many requests of a file came without prompt, and what would bring it."""
    notes, requests, too_long = [], of_file["requests"], of_file["too long"]
    if too_long:
        notes.append(f"{too_long} of {requests} requests: the derived prompt is longer than max_tokens; timing only")
    if missing := of_file["without prompt"] - too_long:
        hint = source.hints.get("prompt", "log the request body")
        notes.append(f"{missing} of {requests} requests have no prompt and count for timing only: {hint}")
    return notes


def _is_data(name: str) -> bool:
    """Say whether a file that no format knows is lost data (each line is quarantined) or a bystander like a licence."""
    return name.removesuffix(".gz").removesuffix(".zst").endswith(_DATA_SUFFIXES)


def _merge(lake: Lake, log: str, reader: _Reader, read: list[FileRead], folder: str) -> ExtractionSummary:
    staging, refs, by_day = reader.staging, [], []
    for day, staged in staging.request_files().items():
        ref, counts = merging.merge_requests(lake, day, staged, folder)
        refs.append(ref)
        by_day.append(counts)
    feedback_rows = feedback_duplicates = 0
    for day, staged in staging.feedback_files().items():
        ref, kept, dropped = merging.merge_feedback(lake, day, staged, folder)
        refs.append(ref)
        feedback_rows, feedback_duplicates = feedback_rows + kept, feedback_duplicates + dropped
    place = digest({"log": str(Path(log).resolve()) if "://" not in log else log})[:16]
    quarantine, reasons = merging.publish_quarantine(lake, place, staging.quarantine_files(), log, folder)
    return ExtractionSummary(
        requests_read=sum(file.records for file in read),
        requests_usable=_sum(by_day, "requests_usable"),
        usable_by_use={use: _sum(by_day, use) for use in ("prefix", "embedding", "qa", "timing")},
        feedback_rows=feedback_rows,
        rows_quarantined=sum(reasons.values()),
        quarantined_by_reason=reasons,
        duplicates=_sum(by_day, "duplicates") + feedback_duplicates,
        prompts_too_long=reader.prompts_too_long,
        not_a_request=reader.not_a_request.total(),
        not_a_request_by_ground=dict(sorted(reader.not_a_request.items())),
        first_time=min(_times(by_day, "first_time"), default=None),
        last_time=max(_times(by_day, "last_time"), default=None),
        models=_union(by_day, "models"),
        adapters=_union(by_day, "adapters"),
        tenants=len(_union(by_day, "tenants")),
        salts=len(_union(by_day, "salts")),
        files=read,
        days=sorted({*staging.request_files(), *staging.feedback_files()}),
        refs=refs + ([quarantine] if quarantine else []),
    )


def _sum(by_day: list[dict[str, Any]], name: str) -> int:
    return sum(counts[name] for counts in by_day)


def _times(by_day: list[dict[str, Any]], name: str) -> list[datetime]:
    return [counts[name].astimezone(UTC) for counts in by_day if counts[name] is not None]


def _union(by_day: list[dict[str, Any]], name: str) -> list[str]:
    return sorted({value for counts in by_day for value in counts[name]})
