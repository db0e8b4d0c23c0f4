"""The interface of a log format, and what a record of any format becomes.

A format recognises its files by a sample and maps one record at a time; files, lines, quarantine, deduplication and the
lake are the business of ``reading.py`` and ``extract.py``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from warmup_tasks.identity import digest
from warmup_tasks.items import Feedback
from warmup_tasks.sources import reading
from warmup_tasks.sources.containers import Container
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.prompts import NO_CONTENT, Prompt

DEFAULT_MODEL = "default"
"""The model of a request whose log names none and for which extraction was given none either."""


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

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield a file's records; by default one JSON object a line."""
        return reading.json_records(lines)

    def notes(self) -> list[str]:
        """Return, after a file was read, what its account says beside the counts: evidence, what is missing, why."""
        return []
