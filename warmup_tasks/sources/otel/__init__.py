"""OpenTelemetry GenAI: spans, and the events that carry their content, as OTLP JSON, OTLP protobuf, or collected.

JSON stands one document a line, as the collector's file exporter writes it, as one whole document, or as
``{trace_id, span_count, spans}``, as collecting tools keep it. Current attribute names and older ones are understood.
The conventions have no field for cache salts. Form: opentelemetry.io/docs/specs/semconv/gen-ai, opentelemetry-proto.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from warmup_tasks.sources import containers, fields, reading
from warmup_tasks.sources.base import Mapped, NotARequest, Recognition, Request, Sample
from warmup_tasks.sources.nests import Nest
from warmup_tasks.sources.otel import spans, wire
from warmup_tasks.sources.otel.content import EMBEDDINGS, content_of, is_message_event
from warmup_tasks.sources.structured import StructuredSource

_REQUESTS = ("chat", "text_completion", "generate_content", EMBEDDINGS)
_DETAILS_EVENT = "gen_ai.client.inference.operation.details"
_CONTENT_EVENTS = (_DETAILS_EVENT, "gen_ai.content.prompt", "gen_ai.content.completion")
_METRICS = {"gauge", "sum", "histogram", "exponentialHistogram", "summary"}

_MODEL = ("gen_ai.request.model", "gen_ai.response.model", "llm.request.model")
_REQUEST_ID = ("gen_ai.response.id", "gen_ai.request.id")
_TENANT = ("tenant.id", "tenant", "user.id", "enduser.id")
_SESSION = ("gen_ai.conversation.id", "session.id")
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens")
_TTFT = ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token")


class OTelSource(StructuredSource):
    """Reads OpenTelemetry GenAI spans and events."""

    name = "otel"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "content is opt-in: set OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental and "
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=span_and_event where the client runs",
        "cached_tokens": "the instrumentation records no gen_ai.usage.cache_read.input_tokens",
    }
    max_batch_bytes: ClassVar[int] = 8 * reading.MAX_LINE_BYTES
    nests: ClassVar[tuple[Nest, ...]] = (
        Nest("resourceSpans.item.scopeSpans.item.spans.item", (("resource", "resourceSpans.item.resource"),)),
        Nest("resourceLogs.item.scopeLogs.item.logRecords.item", (("resource", "resourceLogs.item.resource"),)),
        Nest("resourceMetrics.item.scopeMetrics.item.metrics.item"),
        Nest("spans.item"),
    )

    def recognise(self, sample: Sample) -> Recognition:
        """A file is in this format when it holds OTLP messages, or spans and events with attributes."""
        framing = wire.framing_of(sample.head)
        if framing is not None:
            return Recognition(1.0, f"OTLP protobuf {framing}")
        return self.vote(sample, _is_own, "OpenTelemetry spans or log records")

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield one record a span, log record or metric."""
        framing = wire.framing_of(containers.head(self.file)) if self.file is not None else None
        if self.file is None or framing is None:
            return super().records(lines)
        return wire.records(self.file.blocks(), framing, self.nests, self.max_batch_bytes)

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request of a GenAI span or details event; any other span or log record is none."""
        if record.keys() & _METRICS and "attributes" not in record:
            return NotARequest("metric")
        record = spans.without_zero_times(record)
        events = spans.events(record)
        attributes = _with_content(spans.own_attributes(record), events)
        ground = _ground(record, attributes)
        if ground is not None:
            return NotARequest(ground)
        start = fields.time(record, *spans.START)
        resource = spans.resource_attributes(record)
        operation = fields.text(attributes, "gen_ai.operation.name") or ""
        is_lossy = bool(fields.count(record, "droppedAttributesCount") or fields.count(record, "droppedEventsCount"))
        content = content_of(operation, attributes, events, is_lossy)
        return Request(
            time=start,
            request_id=fields.text(attributes, *_REQUEST_ID) or spans.span_id(record),
            tenant=fields.text(attributes, *_TENANT) or fields.text(resource, *_TENANT[:2]),
            model=fields.text(attributes, *_MODEL),
            request_type=content.request_type,
            session_id=fields.text(attributes, *_SESSION, *(key for key in attributes if key.endswith(".session.id"))),
            prompt=content.prompt,
            is_truncated=content.is_truncated,
            input_tokens=fields.count(attributes, *_INPUT),
            output_tokens=fields.count(attributes, *_OUTPUT),
            cached_tokens=fields.count(attributes, *_CACHED),
            ttft_ms=fields.number(attributes, *_TTFT, scale=1000.0),
            latency_ms=fields.elapsed_ms(start, record, *spans.END),
            status=spans.status(record, attributes),
            answer_text=content.answer_text,
        )


def _is_own(record: Mapping[str, Any]) -> bool:
    is_span = "attributes" in record and bool(record.keys() & set(spans.START))
    return is_span or bool(record.keys() & _METRICS and "name" in record)


def _ground(record: Mapping[str, Any], attributes: Mapping[str, Any]) -> str | None:
    """Return why a record is no request, or None."""
    name = spans.event_name(record)
    if is_message_event(name):
        return "one message as a log record; the details event would have the whole prompt"
    operation = attributes.get("gen_ai.operation.name")
    if operation in _REQUESTS:
        return None
    if operation is not None:
        return "GenAI operation that is no model call"
    if any(attributes.get(key) is not None for key in (*_MODEL, "gen_ai.request.id")):
        return None
    return "log record without a model call" if "body" in record or name else "span without a model call"


def _with_content(attributes: dict[str, Any], events: list[spans.Event]) -> dict[str, Any]:
    for event in events:
        if event.name in _CONTENT_EVENTS:
            attributes = {**event.content, **attributes}
    return attributes
