"""Requests as the lake stores them: Parquet files, or tables in other containers, with the columns of ``lake.schemas``.

So one lake reads from another, and a table that somebody built by hand or by SQL is read as it stands. Times and
numbers follow the rules of all formats; ``prompt_sha256`` is made anew, and the columns that say where a row came from
are left out.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from warmup_tasks.sources import fields, prompts
from warmup_tasks.sources.base import REQUEST_TYPES, Mapped, Recognition, Request, Sample
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.structured import StructuredSource

_REQUIRED = {"time", "body_json", "request_type"}


class LakeTableSource(StructuredSource):
    """Reads tables of requests."""

    name = "lake-table"
    hints: ClassVar[Mapping[str, str]] = {"prompt": "fill the column body_json"}

    def recognise(self, sample: Sample) -> Recognition:
        """A row belongs to this format when it has a time, a body as JSON text and a type."""
        return self.vote(sample, lambda record: record.keys() >= _REQUIRED, "columns time, body_json and request_type")

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request."""
        body = fields.mapping(record, "body_json")
        prompt = prompts.NO_CONTENT
        if body.get("messages") is not None:
            prompt = prompts.chat(body["messages"], body.get("tools"), body.get("template_args"))
        elif body.get("prompt") is not None or body.get("token_ids") is not None:
            name = "token_ids" if body.get("prompt") is None else "prompt"
            prompt = prompts.completion(body[name], name)
        return Request(
            time=fields.time(record, "time"),
            request_id=fields.text(record, "request_id"),
            tenant=fields.tenant(record, "tenant"),
            model=fields.text(record, "model"),
            adapter=fields.text(record, "adapter"),
            cache_salt=fields.salt(record, "cache_salt"),
            request_type=_type(record),
            session_id=fields.text(record, "session_id"),
            prompt=prompt,
            is_truncated=fields.flag(record, "is_truncated"),
            block_hashes=fields.hashes(record, "block_hashes"),
            block_tokens=fields.small_count(record, "block_tokens"),
            input_tokens=fields.count(record, "input_tokens"),
            output_tokens=fields.count(record, "output_tokens"),
            cached_tokens=fields.count(record, "cached_tokens"),
            ttft_ms=fields.number(record, "ttft_ms"),
            latency_ms=fields.number(record, "latency_ms"),
            status=fields.small_count(record, "status"),
            answer_text=fields.text(record, "answer_text"),
        )


def _type(record: Mapping[str, Any]) -> str:
    request_type = fields.text(record, "request_type") or "unknown"
    if request_type not in REQUEST_TYPES:
        raise BadRecordError(Fault.BAD_VALUE, f"request_type must be one of {', '.join(REQUEST_TYPES)}")
    return request_type
