"""The interface of a log format, and what a record of any format becomes.

A format recognises its files by a sample and maps its records, one at a time or many at once; files, lines, quarantine,
deduplication and the lake are the business of ``reading.py`` and ``extract.py``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from warmup_tasks.identity import digest
from warmup_tasks.items import Feedback
from warmup_tasks.sources import reading
from warmup_tasks.sources.columns import Column, Faults, Numbers, Rows
from warmup_tasks.sources.containers import Container
from warmup_tasks.sources.faults import BadRecordError
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.prompts import NO_CONTENT, Prompt

DEFAULT_MODEL = "default"
"""The model of a request whose log names none and for which extraction was given none either."""


REQUEST_TYPES = ("chat", "completion", "embedding", "unknown")


class Recognition(NamedTuple):
    """How sure a format is that a file is its own (0 to 1), and why, in words."""

    score: float
    ground: str


class Sample(NamedTuple):
    """The beginning of a file: its name, its first lines, and the JSON objects among them.

    ``container`` is how its records lie in it, ``inner`` the first ones where they do not lie on lines, ``head`` its
    first bytes.
    """

    name: str
    lines: list[reading.Line]
    records: list[dict[str, Any]]
    container: Container = Container.LINES
    inner: Sequence[dict[str, Any]] = ()
    head: bytes = b""

    def vote(self, is_own: Any, ground: str, weight: float = 1.0) -> Recognition:
        """Return the share of sampled lines for which ``is_own(record)`` holds, times ``weight``, with the ground."""
        matching = sum(bool(is_own(record)) for record in self.records)
        total = len(self.lines)
        return Recognition(weight * matching / total if total else 0.0, f"{ground} in {matching} of {total} lines")


@dataclass(slots=True, kw_only=True)
class Request:
    """One request as a format read it; the columns of ``lake.schemas.REQUESTS``. None: the log does not say."""

    time: datetime
    request_id: str | None = None
    tenant: str | None = None
    model: str | None = None
    adapter: str | None = None
    cache_salt: str | None = None
    request_type: str = "unknown"
    session_id: str | None = None
    prompt: Prompt = field(default=NO_CONTENT, repr=False)
    is_truncated: bool = False
    block_hashes: Sequence[int] | npt.NDArray[np.uint64] | None = None
    block_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_ms: float | None = None
    latency_ms: float | None = None
    status: int | None = None
    answer_text: str | None = field(default=None, repr=False)

    def identity(self) -> str:
        """Return the request id, or, where the log has none, a digest of what else tells requests apart."""
        if self.request_id is not None:
            return self.request_id
        content: list[Any] = [self.prompt.sha256]
        if self.prompt.sha256 is None:
            hashes = [f"{value:x}" for value in (() if self.block_hashes is None else self.block_hashes)]
            content = [hashes, self.input_tokens, self.output_tokens, self.latency_ms]
        return "sha256-" + digest([self.time.isoformat(), content, self.tenant, self.model, self.adapter])[:32]


class NotARequest(NamedTuple):
    """A sound record that is no request to a model: a health check, a start-up message."""

    ground: str


Mapped = Request | Feedback | NotARequest
REQUEST_FIELDS = tuple(field.name for field in fields(Request))
_values_of = attrgetter(*REQUEST_FIELDS)


class Batch:
    """Records that are read together, and what became of each, by its place among them.

    Attributes:
        records: the records.
        faults: place → why the record is refused.
        not_requests: place → the ground of a :class:`NotARequest`.
        feedback: places and rows of feedback.
        places: of the requests; a refused record may be among them, and does not count.
        columns: name of a field of :class:`Request` → its values, in step with ``places``.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.records = records
        self.faults: Faults = {}
        self.not_requests: dict[int, str] = {}
        self.feedback: list[tuple[int, Feedback]] = []
        self.places: Numbers = ()
        self.columns: dict[str, Column] = {}

    def rows(self) -> Rows:
        """Return all records, to be read a column at a time."""
        return Rows(self.records, range(len(self.records)), self.faults)

    def leave_out(self, rows: Rows, grounds: Sequence[str | None]) -> list[bool]:
        """Take rows that have a ground as no requests; return of each row whether it is one."""
        if not any(grounds):
            return [True] * len(rows)
        for place, ground in zip(rows.places, grounds, strict=True):
            if ground is not None and place not in self.faults:
                self.not_requests[int(place)] = ground
        return [place not in self.not_requests for place in rows.places]

    def out(self) -> Any:
        """Say which of the requests are refused, as a mask; None: none is."""
        return np.array([place in self.faults for place in self.places]) if self.faults else None

    def take_rows(self, rows: Rows, **columns: Column) -> None:
        """Take the requests as columns."""
        self.places, self.columns = rows.places, columns

    def take_each(self, read_record: Callable[[Mapping[str, Any]], Mapped]) -> None:
        """Take what ``read_record`` makes of each record."""
        places: list[int] = []
        requests: list[Request] = []
        for place, record in enumerate(self.records):
            try:
                mapped = read_record(record)
            except BadRecordError as error:
                self.faults[place] = (error.fault, error.detail)
                continue
            if isinstance(mapped, Request):
                places.append(place)
                requests.append(mapped)
            else:
                self.take_other(place, mapped)
        self.places = places
        self.columns = dict(zip(REQUEST_FIELDS, map(list, zip(*map(_values_of, requests), strict=True)), strict=False))

    def take_other(self, place: int, mapped: Feedback | NotARequest) -> None:
        """Take a record that is no request."""
        if isinstance(mapped, Feedback):
            self.feedback.append((place, mapped))
        else:
            self.not_requests[place] = mapped.ground

    def only(self) -> Mapped:
        """Return what became of a single record; raises ``BadRecordError`` where it is refused."""
        if self.faults:
            raise BadRecordError(*self.faults[0])
        if self.feedback:
            return self.feedback[0][1]
        if self.not_requests:
            return NotARequest(self.not_requests[0])
        return self.request(0)

    def request(self, row: int) -> Request:
        """Return the request whose values stand in that row of the columns."""
        values = {name: column[row] for name, column in self.columns.items()}
        return Request(
            **{name: value.as_py() if isinstance(value, pa.Scalar) else value for name, value in values.items()}
        )


class Source(ABC):
    """One log format.

    ``hints`` says for what a request can lack (``prompt``, or a field of :class:`Request`) what to change where the log
    is written, so that it stands in the next one. Where a log was published once and for all, nobody can change that.
    """

    name: ClassVar[str]
    hints: ClassVar[Mapping[str, str]] = {}
    is_published_trace: ClassVar[bool] = False

    def for_file(self, file: reading.LogFile, options: ReadOptions) -> Self:
        """Return what reads one file; a format with a clock, or with anything to remember, returns a fresh instance."""
        return self

    @abstractmethod
    def recognise(self, sample: Sample) -> Recognition:
        """Say how sure this format is that the sampled file is its own."""

    @abstractmethod
    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return what one record means; raises ``BadRecordError`` for one that belongs into quarantine."""

    def read_batch(self, batch: Batch) -> None:
        """Read many records; by default one by one."""
        batch.take_each(self.read_record)

    @property
    def is_by_line(self) -> bool:
        """Whether each line is one record that says all by itself.

        Then a file is read in pieces, by several workers, and a growing one from where the last reading ended; any
        other file is read whole, by one. By default a format is by line that leaves ``records`` and ``notes`` alone.
        """
        return type(self).records is Source.records and type(self).notes is Source.notes

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield a file's records; by default one JSON object a line."""
        return reading.json_records(lines)

    def notes(self) -> list[str]:
        """Return, after a file was read, what its account says beside the counts: evidence, what is missing, why."""
        return []


class BatchSource(Source):
    """A format whose meaning is told a column at a time, ten times as fast as record by record."""

    @abstractmethod
    def read_batch(self, batch: Batch) -> None:
        """Read many records: give each its fault, its ground, its feedback or its values."""

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return what one record means, read as a batch of one."""
        batch = Batch([record])
        self.read_batch(batch)
        return batch.only()
