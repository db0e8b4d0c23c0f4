"""OTLP as binary messages: what frames them in a file, and how spans and log records come out of them.

A file holds one message, or many, each behind its length: 4 bytes, big endian, as the collector's file exporter writes
them (each compressed by itself, if at all, and then possibly JSON inside), or a varint. What a span means is decided
elsewhere. Form: opentelemetry-proto, and the file exporter of opentelemetry-collector-contrib.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import orjson
import pyarrow as pa
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from warmup_tasks.sources.documents import Numbering
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.nests import Nest, unfold
from warmup_tasks.sources.reading import DamagedFileError, Raw

_FIRST_FIELD = 0x0A  # field 1, length-delimited: resource_spans, resource_logs, resource; a key
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_VARINT_BYTES = 5


class Framing(StrEnum):
    """How a file parts its messages; each value is a sentence fragment for people."""

    FIXED = "behind 4-byte lengths"
    VARINT = "behind varint lengths"
    SINGLE = "in one message"


def framing_of(head: bytes) -> Framing | None:
    """Tell how a file frames OTLP messages from its first bytes; None when it holds no such messages."""
    if len(head) > 4 and int.from_bytes(head[:4], "big") > 0:
        body = head[4:]
        if body.startswith(_ZSTD_MAGIC) or (head[0] < 0x08 and (_is_resource(body) or body.startswith(b'{"resource'))):
            return Framing.FIXED
    if _is_resource(head):
        return Framing.SINGLE
    length, size = _varint(head)
    return Framing.VARINT if length is not None and length > 0 and _is_resource(head[size:]) else None


def records(blocks: Iterator[bytes], framing: Framing, nests: tuple[Nest, ...], limit: int) -> Iterator[Raw]:
    """Yield the spans and log records of a file of binary messages, in the names of OTLP JSON.

    Args:
        blocks: the content.
        framing: see :func:`framing_of`.
        nests: where records lie in messages that are JSON inside.
        limit: bytes that one message may have.
    """
    numbers, feed = Numbering(), _Feed(blocks)
    try:
        while (length := feed.length(framing)) is not None:
            if length > limit:
                feed.skip(length)
                yield numbers.fault(Fault.RECORD_TOO_LONG, f"{length} bytes, the limit is {limit}")
                continue
            message = feed.take(length)
            if framing is Framing.SINGLE:
                message = bytes([_FIRST_FIELD]) + _as_varint(length) + message
            try:
                for record in _decoded(message, nests):
                    yield numbers.raw(record)
            except (DecodeError, orjson.JSONDecodeError, OSError, pa.ArrowInvalid):
                yield numbers.fault(Fault.BAD_MESSAGE, f"{length} bytes")
    except EOFError:
        yield numbers.fault(Fault.TRUNCATED_DOCUMENT)
    except DamagedFileError as error:
        yield numbers.fault(error.fault, "what follows is lost")


class _Feed:
    """The bytes of a file, taken in pieces of known length."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._held = blocks, bytearray()

    def length(self, framing: Framing) -> int | None:
        """Return the length of the next message, or None at the end."""
        if not self._fill(1):
            return None
        if framing is Framing.FIXED:
            return int.from_bytes(self.take(4), "big")
        if framing is Framing.SINGLE and self.take(1)[0] != _FIRST_FIELD:
            raise DamagedFileError(Fault.BAD_MESSAGE)
        self._fill(_VARINT_BYTES)
        length, size = _varint(bytes(self._held[:_VARINT_BYTES]))
        if length is None:
            raise DamagedFileError(Fault.BAD_MESSAGE)
        self.take(size)
        return length

    def take(self, length: int) -> bytes:
        if not self._fill(length):
            raise EOFError
        taken = bytes(self._held[:length])
        del self._held[:length]
        return taken

    def skip(self, length: int) -> None:
        while length > len(self._held):
            length -= len(self._held)
            self._held.clear()
            if not self._fill(1):
                raise EOFError
        del self._held[:length]

    def _fill(self, length: int) -> bool:
        while len(self._held) < length:
            block = next(self._blocks, None)
            if block is None:
                return False
            self._held += block
        return True


def _decoded(message: bytes, nests: tuple[Nest, ...]) -> Iterator[Any]:
    if message.startswith(_ZSTD_MAGIC):
        message = pa.CompressedInputStream(pa.BufferReader(message), "zstd").read()
    if message.startswith(b"{"):
        yield from unfold(orjson.loads(message), nests)
        return
    traces = TracesData.FromString(message)
    spans = [(group, span) for group in traces.resource_spans for scope in group.scope_spans for span in scope.spans]
    if any(span.start_time_unix_nano for _, span in spans):
        yield from (_span(span, group.resource.attributes) for group, span in spans)
        return
    # all three signals begin alike on the wire: no span has a time, so these are log records or metrics
    logs = LogsData.FromString(message)
    found = [(group, log) for group in logs.resource_logs for scope in group.scope_logs for log in scope.log_records]
    if any(log.time_unix_nano or log.observed_time_unix_nano for _, log in found):
        yield from (_log(log, group.resource.attributes) for group, log in found)
        return
    metrics = MetricsData.FromString(message)
    names = [
        metric.name for group in metrics.resource_metrics for scope in group.scope_metrics for metric in scope.metrics
    ]
    if not names and spans:
        raise DecodeError("neither spans, log records nor metrics")
    yield from ({"name": name, "sum": {}} for name in names)


def _span(span: Span, resource: Any) -> dict[str, Any]:
    return {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "name": span.name,
        "startTimeUnixNano": span.start_time_unix_nano,
        "endTimeUnixNano": span.end_time_unix_nano,
        "attributes": _attributes(span.attributes),
        "droppedAttributesCount": span.dropped_attributes_count,
        "events": [{"name": event.name, "attributes": _attributes(event.attributes)} for event in span.events],
        "droppedEventsCount": span.dropped_events_count,
        "status": {"code": span.status.code},
        "resource": {"attributes": _attributes(resource)},
    }


def _log(log: Any, resource: Any) -> dict[str, Any]:
    return {
        "traceId": log.trace_id.hex(),
        "spanId": log.span_id.hex(),
        "timeUnixNano": log.time_unix_nano,
        "observedTimeUnixNano": log.observed_time_unix_nano,
        "eventName": log.event_name,
        "body": _value(log.body),
        "attributes": _attributes(log.attributes),
        "droppedAttributesCount": log.dropped_attributes_count,
        "resource": {"attributes": _attributes(resource)},
    }


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    if kind == "array_value":
        return [_value(part) for part in value.array_value.values]
    return getattr(value, kind) if kind and kind != "bytes_value" else None


def _is_resource(head: bytes) -> bool:
    """Say whether a message begins as OTLP does: field 1 in field 1 (a resource, or at once its scopes)."""
    if head[:1] != bytes([_FIRST_FIELD]):
        return False
    length, size = _varint(head[1:])
    inner = head[1 + size :]
    if length is None or inner[:1] not in (b"\x0a", b"\x12"):
        return False
    inner_length, inner_size = _varint(inner[1:])
    return inner_length is not None and 1 + inner_size + inner_length <= length


def _varint(data: bytes) -> tuple[int | None, int]:
    value = 0
    for position, byte in enumerate(data[:_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return value, position + 1
    return None, 0


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
