"""The project's own format: JSON lines whose field names are the columns of the lake.

``docs/sources.md`` lists the fields. The format is strict: a field that it does not have is a fault, since a mistyped
``cache_salt`` would warm blocks that no request can hit. Names that begin with ``x_`` are free for notes.
"""

from collections.abc import Mapping
from typing import Any

from warmup_tasks.items import Feedback
from warmup_tasks.sources import fields, prompts
from warmup_tasks.sources.base import REQUEST_TYPES, Batch, BatchSource, Recognition, Sample
from warmup_tasks.sources.columns import Rows
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


class NormalisedSource(BatchSource):
    """Reads the project's own JSON lines."""

    name = "normalised"

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when its ``record`` says request or feedback."""
        return sample.vote(lambda r: r.get("record") in ("request", "feedback"), "'record' is request or feedback")

    def read_batch(self, batch: Batch) -> None:
        """Read requests and feedback rows."""
        rows = batch.rows()
        kinds = rows.values("record")
        if kinds.count("request") < len(kinds):
            for place, (record, kind) in enumerate(zip(batch.records, kinds, strict=True)):
                if kind != "request":
                    _read_other(batch, place, record, kind)
        requests = rows.where(kind == "request" for kind in kinds)
        _refuse_unknown(requests, _REQUEST_FIELDS)
        prompt = requests.map(_prompt, default=prompts.NO_CONTENT)
        batch.take_rows(
            requests,
            prompt=prompt,
            request_type=requests.map(_request_type, requests.text("request_type"), prompt),
            time=requests.time("time"),
            request_id=requests.text("request_id"),
            tenant=requests.tenant("tenant"),
            model=requests.text("model"),
            adapter=requests.text("adapter"),
            cache_salt=requests.salt("cache_salt"),
            session_id=requests.text("session_id"),
            is_truncated=requests.flag("is_truncated"),
            block_hashes=requests.hashes("block_hashes"),
            block_tokens=requests.small_count("block_tokens"),
            input_tokens=requests.count("input_tokens"),
            output_tokens=requests.count("output_tokens"),
            cached_tokens=requests.count("cached_tokens"),
            ttft_ms=requests.number("ttft_ms"),
            latency_ms=requests.number("latency_ms"),
            status=requests.small_count("status"),
            answer_text=requests.text("answer_text"),
        )


def _read_other(batch: Batch, place: int, record: Mapping[str, Any], kind: Any) -> None:
    row = Rows([record], [place], batch.faults)
    if kind != "feedback":
        row.refuse(0, BadRecordError(Fault.BAD_VALUE, "record must be 'request' or 'feedback'"))
        return
    _refuse_unknown(row, _FEEDBACK_FIELDS)
    (feedback,) = row.map(_feedback)
    if place not in batch.faults:
        batch.take_other(place, feedback)


def _refuse_unknown(rows: Rows, known: set[str]) -> None:
    if rows.names <= known:
        return
    for row, record in enumerate(rows.objects):
        unknown = sorted(name for name in record if name not in known and not name.startswith("x_"))
        if unknown:
            detail = ", ".join(name[:40] for name in unknown[:5])
            rows.refuse(row, BadRecordError(Fault.UNKNOWN_FIELD, detail))


def _request_type(record: Mapping[str, Any], named: str | None, prompt: prompts.Prompt) -> str:
    if prompt.body_json is None and "request_type" not in record:
        return "unknown"
    request_type = named or ("chat" if record.get("messages") else "completion")
    if request_type not in REQUEST_TYPES:
        raise BadRecordError(Fault.BAD_VALUE, f"request_type must be one of {', '.join(REQUEST_TYPES)}")
    return request_type


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
    messages, prompt, token_ids = record.get("messages"), record.get("prompt"), record.get("token_ids")
    if prompt is None and token_ids is None:
        if messages is None:
            return prompts.NO_CONTENT
        return prompts.chat(messages, record.get("tools"), record.get("template_args"))
    contents = [name for name in ("messages", "prompt", "token_ids") if record.get(name) is not None]
    if len(contents) > 1:
        raise BadRecordError(Fault.BAD_VALUE, f"{' and '.join(contents)} together: a prompt is one of them")
    return prompts.completion(record[contents[0]], contents[0])
