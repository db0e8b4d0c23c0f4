"""Mooncake traces: JSON lines of timestamp (ms from the start), input_length, output_length and hash_ids.

The hashes stand for blocks of 512 tokens, the last one for what is left of the prompt. There is no prompt, no model and
no tenant; form: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Self

from warmup_tasks.sources import clock, fields, reading
from warmup_tasks.sources.base import Mapped, Recognition, Request, Sample, Source
from warmup_tasks.sources.options import DEFAULT_EPOCH, ReadOptions
from warmup_tasks.sources.repeats import RowIds

BLOCK_TOKENS = 512
_FIELDS = {"timestamp", "input_length", "output_length", "hash_ids"}


class MooncakeSource(Source):
    """Reads Mooncake traces."""

    name = "mooncake"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "the trace holds block hashes only; --tokens-per-block and --vocabulary-size derive token ids"
    }
    is_published_trace = True

    def __init__(self, epoch: datetime = DEFAULT_EPOCH) -> None:
        self._epoch = epoch

    def for_file(self, file: reading.LogFile, options: ReadOptions) -> Self:
        """Start the trace's clock at the epoch."""
        return type(self)(options.clock_start)

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it has the four fields and names no chat."""
        return sample.vote(
            lambda record: record.keys() >= _FIELDS and "chat_id" not in record,
            "timestamp, input_length, output_length and hash_ids",
            0.9,
        )

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield one record a line, with an id of its own: equal rows of one trace are so many requests."""
        ids = RowIds()
        for raw in reading.json_records(lines):
            if raw.line.fault is None:
                raw.value["request_id"] = ids.of(raw.line.data, raw.value.get("timestamp"))
            yield raw

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request."""
        return Request(
            time=clock.since(self._epoch, record, "timestamp", per_s=1000),
            request_id=fields.text(record, "request_id"),
            session_id=fields.text(record, "session_id"),
            block_hashes=fields.hashes(record, "hash_ids"),
            block_tokens=BLOCK_TOKENS,
            input_tokens=fields.count(record, "input_length"),
            output_tokens=fields.count(record, "output_length"),
        )
