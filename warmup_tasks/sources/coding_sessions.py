"""Coding sessions: JSON lines, one agent session each, with its requests' times (s from the start) and block hashes.

A row of type ``subagent`` is no request itself but holds some, on its own clock. Hashes are ranges ``[[lo, hi], …]`` of
64-token blocks, numbered within the session; here they become 64-bit hashes that no other session has.
"""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from warmup_tasks.sources import clock, fields, reading
from warmup_tasks.sources.base import Mapped, NotARequest, Recognition, Request, Sample, Source
from warmup_tasks.sources.documents import Numbering
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.options import DEFAULT_EPOCH, ReadOptions

_LOCAL_BITS = 24  # of a hash; the session's digest fills the other 40
_MOST_BLOCKS = 2**20
_SESSION, _PLACE, _OFFSET = "x_session", "x_place", "x_offset"


class CodingSessionsSource(Source):
    """Reads coding sessions."""

    name = "coding-sessions"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "the log holds block hashes only; --tokens-per-block and --vocabulary-size derive token ids"
    }
    is_published_trace = True

    def __init__(self, epoch: datetime = DEFAULT_EPOCH) -> None:
        self._epoch = epoch

    def for_file(self, file: reading.LogFile, options: ReadOptions) -> Self:
        """Start every session's clock at the epoch."""
        return type(self)(options.clock_start)

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it is a session with requests and a block size."""
        return sample.vote(
            lambda record: isinstance(record.get("requests"), list) and {"id", "block_size"} <= record.keys(),
            "a session's id, block_size and requests",
        )

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield one record for each row of each session, and for each request within a subagent's row."""
        numbers = Numbering()
        for raw in reading.json_records(lines):
            for line, value in _session_rows(raw):
                yield reading.Raw(line._replace(number=numbers.next(line.number)), value)

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request; a subagent's row is none, its requests follow."""
        session = record.get(_SESSION)
        if not isinstance(session, dict):
            raise BadRecordError(Fault.BAD_TYPE, "requests is no list")
        name = fields.text(session, "id")
        if name is None:
            raise BadRecordError(Fault.BAD_VALUE, "the session has no id")
        if record.get("type") == "subagent":
            return NotARequest("subagent row, whose requests are counted themselves")
        agent = fields.text(record, "x_agent")
        block_tokens = fields.small_count(session, "block_size")
        return Request(
            time=clock.since(self._epoch, record, "t", per_s=1) + timedelta(seconds=record.get(_OFFSET, 0.0)),
            request_id=f"{name}/{record.get(_PLACE)}",
            model=fields.text(record, "model"),
            request_type="chat",
            session_id=name if agent is None else f"{name}/{agent}",
            block_hashes=_hashes(record.get("hash_ranges"), name, session.get("hash_id_scope")),
            block_tokens=block_tokens or None,
            input_tokens=fields.count(record, "in"),
            output_tokens=fields.count(record, "out"),
            ttft_ms=fields.number(record, "ttft", scale=1000),
            latency_ms=fields.number(record, "api_time", scale=1000),
        )


def _session_rows(raw: reading.Raw) -> Iterator[reading.Raw]:
    if raw.line.fault is not None or not isinstance(raw.value.get("requests"), list):
        yield raw
        return
    session = {name: raw.value.get(name) for name in ("id", "block_size", "hash_id_scope")}
    for place, row in enumerate(raw.value["requests"]):
        yield from _rows(raw.line, session, f"{place}", row)


def _rows(line: reading.Line, session: dict[str, Any], place: str, row: Any) -> Iterator[reading.Raw]:
    if not isinstance(row, dict):
        yield reading.Raw(line._replace(fault=Fault.BAD_TYPE, detail=f"requests[{place}] is no object"), {})
        return
    yield reading.Raw(line, {**row, _SESSION: session, _PLACE: place})
    inner = row.get("requests")
    if row.get("type") != "subagent" or not isinstance(inner, list):
        return
    start = row.get("t")
    offset = float(start) if isinstance(start, int | float) and 0 <= start < 10**9 else 0.0
    agent = {"x_agent": row.get("agent_id") or place, _OFFSET: offset}
    for position, request in enumerate(inner):
        for raw in _rows(line, session, f"{place}.{position}", request):
            yield reading.Raw(raw.line, {**raw.value, **agent})


def _hashes(ranges: Any, session: str, scope: Any) -> npt.NDArray[np.uint64]:
    base = 0
    if scope != "global":
        base = int.from_bytes(hashlib.sha256(session.encode(errors="surrogatepass")).digest()[:5], "big") << _LOCAL_BITS
    if not isinstance(ranges, list):
        raise BadRecordError(Fault.BAD_TYPE, "hash_ranges is no list")
    bounds = []
    for position, pair in enumerate(ranges):
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(end) is int for end in pair)):
            raise BadRecordError(Fault.BAD_TYPE, f"hash_ranges[{position}] is no pair of whole numbers")
        low, high = pair
        if not 0 <= low <= high < 2**_LOCAL_BITS:
            raise BadRecordError(Fault.BAD_VALUE, f"hash_ranges[{position}] lies outside 0 to 2^{_LOCAL_BITS}")
        bounds.append((low, high))
    if sum(high - low + 1 for low, high in bounds) > _MOST_BLOCKS:
        raise BadRecordError(Fault.BAD_VALUE, f"hash_ranges hold more than {_MOST_BLOCKS} blocks")
    parts = [np.arange(low, high + 1, dtype=np.uint64) for low, high in bounds]
    return np.concatenate([np.zeros(0, dtype=np.uint64), *parts]) + np.uint64(base)
