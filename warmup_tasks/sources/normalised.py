"""The project's own format: JSON lines whose field names are the columns of the lake.

``docs/sources.md`` lists the fields. The format is strict: a field that it does not have is a fault, since a mistyped
``cache_salt`` would warm blocks that no request can hit. Names that begin with ``x_`` are free for notes.
"""

from collections.abc import Mapping
from typing import Any

from warmup_tasks.items import Feedback
from warmup_tasks.sources import fields, prompts
from warmup_tasks.sources.base import REQUEST_TYPES, Batch, BatchSource, Recognition, Sample
from warmup_tasks.sources.columns import Rows, coalesce
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
_FREE = "x_"
_NAMES = prompts.PromptNames(others=("token_ids",))


class NormalisedSource(BatchSource):
    """Reads the project's own JSON lines."""

    name = "normalised"

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when its ``record`` says request or feedback."""
        return sample.vote(lambda r: r.get("record") in ("request", "feedback"), "'record' is request or feedback")

    def read_batch(self, batch: Batch) -> None:
        """Read requests and feedback rows."""
        rows = batch.rows()
        rows, others = rows.split(rows.equals("record", "request"))
        others.each(lambda place, record: _read_other(batch, place, record))
        rows.only_names(_REQUEST_FIELDS, _FREE)
        kinds, prompt = rows.prompts(_kind_and_prompt, _NAMES)
        batch.take_rows(
            rows,
            prompt=prompt,
            request_type=coalesce(rows.one_of("request_type", REQUEST_TYPES), kinds),
            time=rows.time("time"),
            request_id=rows.text("request_id"),
            tenant=rows.tenant("tenant"),
            model=rows.text("model"),
            adapter=rows.text("adapter"),
            cache_salt=rows.salt("cache_salt"),
            session_id=rows.text("session_id"),
            is_truncated=rows.flag("is_truncated"),
            block_hashes=rows.hashes("block_hashes"),
            block_tokens=rows.small_count("block_tokens"),
            input_tokens=rows.count("input_tokens"),
            output_tokens=rows.count("output_tokens"),
            cached_tokens=rows.count("cached_tokens"),
            ttft_ms=rows.number("ttft_ms"),
            latency_ms=rows.number("latency_ms"),
            status=rows.small_count("status"),
            answer_text=rows.text("answer_text"),
        )


def _read_other(batch: Batch, place: int, record: Mapping[str, Any]) -> None:
    row = Rows([record], [place], batch.faults)
    if record.get("record") != "feedback":
        row.refuse(0, BadRecordError(Fault.BAD_VALUE, "record must be 'request' or 'feedback'"))
        return
    row.only_names(_FEEDBACK_FIELDS, _FREE)
    (feedback,) = row.map(_feedback)
    if place not in batch.faults:
        batch.take_other(place, feedback)


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


def _kind_and_prompt(record: Mapping[str, Any]) -> tuple[str, prompts.Prompt]:
    prompt = _prompt(record)
    if prompt.body_json is None and "request_type" not in record:
        return "unknown", prompt
    return "chat" if record.get("messages") else "completion", prompt


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
