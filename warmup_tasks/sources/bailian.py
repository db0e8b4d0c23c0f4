"""Qwen-Bailian traces: JSON lines of chats with timestamp (s from the start), turn and hashes of 16-token blocks.

A chat names the one that it goes on from (``parent_chat_id``, -1: none); chats in one chain are one session. Form:
github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Self

from warmup_tasks.sources import clock, fields, reading
from warmup_tasks.sources.base import Mapped, Recognition, Request, Sample, Source
from warmup_tasks.sources.options import DEFAULT_EPOCH, ReadOptions
from warmup_tasks.sources.repeats import RowIds

BLOCK_TOKENS = 16
_FIELDS = {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"}
_BLOCK_SIZE_IN_NAME = re.compile(r"blksz_(\d{1,5})")


class BailianSource(Source):
    """Reads Qwen-Bailian traces."""

    name = "qwen-bailian"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "the trace holds block hashes only; --tokens-per-block and --vocabulary-size derive token ids"
    }
    is_published_trace = True

    def __init__(self, epoch: datetime = DEFAULT_EPOCH, block_tokens: int = BLOCK_TOKENS) -> None:
        self._epoch, self._block_tokens = epoch, block_tokens
        self._roots: dict[str, str] = {}

    def for_file(self, file: reading.LogFile, options: ReadOptions) -> Self:
        """Start the trace's clock at the epoch; the file's name may tell another block size (``…blksz_32…``)."""
        told = _BLOCK_SIZE_IN_NAME.search(file.name)
        return type(self)(options.clock_start, int(told[1]) if told and int(told[1]) else BLOCK_TOKENS)

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it has the ids of a chat and its parent, times and lengths."""
        return sample.vote(lambda record: record.keys() >= _FIELDS, "chat_id, parent_chat_id, timestamp and lengths")

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield one record a line, with an id of its own, since chat ids are anew in each trace."""
        ids = RowIds()
        for raw in reading.json_records(lines):
            if raw.line.fault is None:
                raw.value["request_id"] = ids.of(raw.line.data, raw.value.get("timestamp"))
            yield raw

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request; its session is the first chat of its chain, as far as the trace tells."""
        hashes = fields.hashes(record, "hash_ids")
        return Request(
            time=clock.since(self._epoch, record, "timestamp", per_s=1),
            request_id=fields.text(record, "request_id"),
            request_type="chat",
            session_id=self._session(fields.text(record, "chat_id"), fields.text(record, "parent_chat_id")),
            block_hashes=hashes,
            block_tokens=None if hashes is None else self._block_tokens,
            input_tokens=fields.count(record, "input_length"),
            output_tokens=fields.count(record, "output_length"),
        )

    def _session(self, chat: str | None, parent: str | None) -> str | None:
        if chat is None:
            return None
        self._roots[chat] = chat if parent in (None, "-1") else self._roots.get(str(parent), str(parent))
        return self._roots[chat]
