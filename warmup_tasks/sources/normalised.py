"""The project's own format: JSON lines whose field names are the columns of the lake.

``docs/sources.md`` lists the fields. The format is strict: a field that it does not have is a fault, since a mistyped
``cache_salt`` would warm blocks that no request can hit. Names that begin with ``x_`` are free for notes.
"""

from collections.abc import Mapping
from typing import Any

from warmup_tasks.items import Feedback
from warmup_tasks.sources import fields, prompts
from warmup_tasks.sources.base import Mapped, Recognition, Request, Sample, Source
from warmup_tasks.sources.faults import BadRecordError, Fault

_PROMPT_FIELDS = {"messages", "prompt", "token_ids", "tools", "template_args"}
_REQUEST_FIELDS = _PROMPT_FIELDS | {
    "record", "time", "request_id", "tenant", "model", "adapter", "cache_salt", "request_type", "session_id",
    "is_truncated", "block_hashes", "block_tokens", "input_tokens", "output_tokens", "cached_tokens", "ttft_ms",
    "latency_ms", "status", "answer_text",
}  # fmt: skip
_FEEDBACK_FIELDS = _PROMPT_FIELDS | {
    "record", "time", "tenant", "prompt_sha256", "intent_hash", "confidence", "correction", "adopted_count",
}  # fmt: skip
_TYPES = {"chat", "completion", "embedding", "unknown"}


class NormalisedSource(Source):
    """Reads the project's own JSON lines."""

    name = "normalised"

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when its ``record`` says request or feedback."""
        return sample.vote(lambda r: r.get("record") in ("request", "feedback"), "'record' is request or feedback")

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return a request or a feedback row."""
        kind = record.get("record")
        if kind == "request":
            _refuse_unknown(record, _REQUEST_FIELDS)
            return _request(record)
        if kind == "feedback":
            _refuse_unknown(record, _FEEDBACK_FIELDS)
            return _feedback(record)
        raise BadRecordError(Fault.BAD_VALUE, "record must be 'request' or 'feedback'")


def _refuse_unknown(record: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(name for name in record if name not in known and not name.startswith("x_"))
    if unknown:
        raise BadRecordError(Fault.UNKNOWN_FIELD, ", ".join(name[:40] for name in unknown[:5]))


def _request(record: Mapping[str, Any]) -> Request:
    prompt = _prompt(record)
    request_type = fields.text(record, "request_type") or ("chat" if record.get("messages") else "completion")
    if request_type not in _TYPES:
        raise BadRecordError(Fault.BAD_VALUE, f"request_type must be one of {', '.join(sorted(_TYPES))}")
    if prompt.body_json is None and "request_type" not in record:
        request_type = "unknown"
    return Request(
        time=fields.time(record, "time"),
        request_id=fields.text(record, "request_id"),
        tenant=fields.tenant(record, "tenant"),
        model=fields.text(record, "model"),
        adapter=fields.text(record, "adapter"),
        cache_salt=fields.salt(record, "cache_salt"),
        request_type=request_type,
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


def _feedback(record: Mapping[str, Any]) -> Feedback:
    sha256 = _prompt(record).sha256 or fields.text(record, "prompt_sha256")
    intent = fields.text(record, "intent_hash")
    confidence = fields.number(record, "confidence")
    if sha256 is None and intent is None:
        raise BadRecordError(Fault.BAD_VALUE, "feedback names neither a prompt nor an intent_hash")
    if confidence is None or confidence > 1:
        raise BadRecordError(Fault.BAD_VALUE, "confidence must be a number from 0 to 1")
    return Feedback(
        time=fields.time(record, "time"),
        tenant=fields.tenant(record, "tenant"),
        prompt_sha256=sha256,
        intent_hash=intent,
        confidence=confidence,
        correction=fields.text(record, "correction"),
        adopted_count=fields.count(record, "adopted_count") or 0,
    )


def _prompt(record: Mapping[str, Any]) -> prompts.Prompt:
    contents = [name for name in ("messages", "prompt", "token_ids") if record.get(name) is not None]
    if len(contents) > 1:
        raise BadRecordError(Fault.BAD_VALUE, f"{' and '.join(contents)} together: a prompt is one of them")
    if not contents:
        return prompts.NO_CONTENT
    if contents == ["messages"]:
        return prompts.chat(record["messages"], record.get("tools"), record.get("template_args"))
    return prompts.completion(record[contents[0]], contents[0])
