"""What is known of a log from its last reading: how far each file was read, and what stood in it.

Kept in the lake under ``logs/<place>``, one row a file. A file is known again by its first bytes and by those before
the place where reading ended, whatever it is called now and whether it was compressed since. Here is decided from where
a file is read; nothing is read from it but those bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Any, Literal, NamedTuple, Self

import pyarrow as pa
from pydantic import Field

from warmup_tasks.errors import ContractError
from warmup_tasks.items import Record
from warmup_tasks.lake import Lake
from warmup_tasks.sources.reading import DamagedFileError, LogFile
from warmup_tasks.sources.tabling import Tally

DATASET = TABLE = "logs"
SCHEMA_VERSION = 1
EDGE_BYTES = 4_096
USES = ("prefix", "embedding", "qa", "timing")
EVERY_LINE = 2**62
"""The last line of a file that was read whole."""

_SCHEMA = pa.schema([("schema_version", pa.int32()), ("file", pa.string()), ("entry_json", pa.string())])


class Account(Record):
    """What stood in some lines of one file. Parts that do not overlap add up."""

    requests: int = 0
    feedback: int = 0
    faults: dict[str, int] = Field(default_factory=dict)
    not_requests: dict[str, int] = Field(default_factory=dict)
    without_prompt: int = 0
    too_long: int = 0
    uses: dict[str, int] = Field(default_factory=dict)
    first_time: datetime | None = None
    last_time: datetime | None = None
    days: list[date] = Field(default_factory=list)
    models: list[str] = Field(default_factory=list)
    adapters: list[str] = Field(default_factory=list)
    tenants: list[str] = Field(default_factory=list)
    salts: list[str] = Field(default_factory=list)
    feedback_days: list[date] = Field(default_factory=list)
    feedback_rows: list[str] = Field(default_factory=list)

    @property
    def records(self) -> int:
        """Every record."""
        return self.requests + self.feedback + sum(self.faults.values()) + sum(self.not_requests.values())

    @property
    def usable(self) -> int:
        """Requests that are no duplicates."""
        return self.uses.get("timing", 0)

    @classmethod
    def of_tally(cls, tally: Tally) -> Self:
        """Return what was counted while reading; what the lake makes of it comes from :meth:`of_requests`."""
        return cls(
            requests=tally.requests,
            feedback=tally.feedback,
            faults=dict(tally.faults),
            not_requests=dict(tally.not_requests),
            without_prompt=tally.without_prompt,
            too_long=tally.too_long,
        )

    @classmethod
    def of_requests(cls, day: date, counts: dict[str, Any]) -> Self:
        """Return a row of ``count_requests`` as part of the account; displaced rows count against it."""
        if counts["is_displaced"]:
            return cls(uses={use: -counts[use] for use in USES})
        times = {name: counts[name] and counts[name].astimezone(UTC) for name in ("first_time", "last_time")}
        names = {name: sorted(counts[name]) for name in ("models", "adapters", "tenants", "salts")}
        return cls(uses={use: counts[use] for use in USES}, days=[day], **times, **names)

    @classmethod
    def of_feedback(cls, day: date, counts: dict[str, Any]) -> Self:
        """Return a row of ``count_feedback`` as part of the account."""
        return cls(feedback_days=[day], feedback_rows=counts["rows"])

    @classmethod
    def sum(cls, parts: Iterable["Account"]) -> Self:
        """Return the account of several parts."""
        parts = list(parts)
        totals: dict[str, Any] = {
            name: sum(getattr(part, name) for part in parts)
            for name in ("requests", "feedback", "without_prompt", "too_long")
        }
        for name in ("faults", "not_requests", "uses"):
            counter: Counter[str] = Counter()
            for part in parts:
                counter.update(getattr(part, name))
            totals[name] = dict(sorted(counter.items()))
        for name in ("days", "models", "adapters", "tenants", "salts", "feedback_days", "feedback_rows"):
            totals[name] = sorted({value for part in parts for value in getattr(part, name)})
        first = [part.first_time for part in parts if part.first_time is not None]
        last = [part.last_time for part in parts if part.last_time is not None]
        return cls(**totals, first_time=min(first, default=None), last_time=max(last, default=None))


class Entry(Record):
    """One file as it was last read.

    Attributes:
        file: its name then.
        former_names: names that its rows have in the lake, besides.
        format: its format; None: no known one.
        ground: on what ground.
        read_as: digest of everything else that decides what is read from it.
        size_bytes: of the file as it was stored.
        content_bytes: how far it was read, decompressed; a line without end is read again.
        lines: how many lines that is.
        is_finished: nothing but what was read stood in it.
        head_sha256: of its first ``head_bytes``, a last line without end included.
        head_bytes: how many those are.
        seam_sha256: of the last ``seam_bytes`` before ``content_bytes``.
        seam_bytes: how many those are; 0: nothing is known of them.
        notes: what its format said about it.
        account: what stood in the part that was read, without a last line that had no end.
    """

    file: str
    former_names: list[str] = Field(default_factory=list)
    format: str | None
    ground: str
    read_as: str
    size_bytes: int
    content_bytes: int
    lines: int
    is_finished: bool
    head_sha256: str
    head_bytes: int
    seam_sha256: str
    seam_bytes: int
    notes: list[str] = Field(default_factory=list)
    account: Account = Account()


class Plan(NamedTuple):
    """From where a file is read: not at all, on from where an entry ends, or from its beginning."""

    how: Literal["skip", "continue", "whole"]
    entry: Entry | None = None


class Edge(NamedTuple):
    """Some bytes by which a file is known."""

    sha256: str
    size_bytes: int

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return the edge with these bytes."""
        return cls(hashlib.sha256(data).hexdigest(), len(data))


def load(lake: Lake, place: str) -> list[Entry]:
    """Return what is known of a log; nothing, when another version of the library wrote it."""
    if lake.latest(DATASET, place) is None:
        return []
    try:
        rows = lake.read(f"{DATASET}/{place}", TABLE).to_pylist()
    except ContractError:
        return []
    return [Entry.model_validate_json(row["entry_json"]) for row in rows if row["schema_version"] == SCHEMA_VERSION]


def save(lake: Lake, place: str, entries: Sequence[Entry]) -> None:
    """Keep what is known of a log."""
    rows = [
        {"schema_version": SCHEMA_VERSION, "file": entry.file, "entry_json": entry.model_dump_json()}
        for entry in sorted(entries, key=lambda entry: entry.file)
    ]
    lake.publish(DATASET, place, {TABLE: pa.Table.from_pylist(rows, schema=_SCHEMA)})


def plan(files: Sequence[LogFile], entries: Sequence[Entry], read_as: str) -> list[Plan]:
    """Return from where each file is read. A renamed file is one whose beginning is known under another name."""
    usable = [entry for entry in entries if entry.read_as == read_as]
    plans: dict[int, Plan] = {}
    taken: set[str] = set()
    for is_renamed in (False, True):
        for number, file in enumerate(files):
            if number in plans or not file.can_go_on:
                continue
            candidates = [e for e in usable if e.file not in taken and (is_renamed or e.file == file.name)]
            head = content(file, 0, EDGE_BYTES) if candidates else b""
            for entry in candidates:
                how = _how(file, entry, head)
                if how is not None:
                    plans[number] = Plan(how, entry)
                    taken.add(entry.file)
                    break
    return [plans.get(number, Plan("whole")) for number in range(len(files))]


def known_rows(continued: Sequence[tuple[str, Entry | None]]) -> list[tuple[str, str, int, int]]:
    """Return of files that are not read anew: file, name that its rows have in the lake, first and last line of those.

    After a rotation a name stands for the lines of two files; each line goes to the file that has the name now, as far
    as that goes, the further ones to the other.
    """
    known: list[tuple[str, str, int, int]] = []
    reached: dict[str, int] = {}
    found = [(file, entry) for file, entry in continued if entry is not None]
    for is_former in (False, True):
        for file, entry in found:
            for name in entry.former_names if is_former else [entry.file]:
                first = reached.get(name, 0) + 1
                if entry.lines >= first:
                    known.append((file, name, first, entry.lines))
                    reached[name] = entry.lines
    return known


def content(file: LogFile, start: int, size: int) -> bytes:
    """Return a part of a file's decompressed content, less where it ends before."""
    parts, held = [], 0
    try:
        for block in file.blocks(start=start):
            parts.append(block)
            held += len(block)
            if held >= size:
                break
    except DamagedFileError:
        pass  # reading the file says so
    return b"".join(parts)[:size]


def _how(file: LogFile, entry: Entry, head: bytes) -> Literal["skip", "continue"] | None:
    if not entry.head_bytes or Edge.of(head[: entry.head_bytes]) != (entry.head_sha256, entry.head_bytes):
        return None
    if entry.is_finished and file.size_bytes == entry.size_bytes and file.is_compressed:
        return "skip"
    if entry.content_bytes and not entry.seam_bytes:
        return None
    seam = content(file, entry.content_bytes - entry.seam_bytes, entry.seam_bytes + 1)
    if Edge.of(seam[: entry.seam_bytes]) != (entry.seam_sha256, entry.seam_bytes):
        return None
    is_at_end = len(seam) == entry.seam_bytes
    if entry.lines == EVERY_LINE:
        return "skip" if is_at_end else None
    return "skip" if is_at_end and entry.is_finished else "continue"
