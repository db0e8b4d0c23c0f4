"""A span or log record as plain values, whichever way it was written down.

Here OTLP's typed values, the forms of collecting tools and the places of ids, status and events are evened out. What a
span asks of a model is decided elsewhere.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from warmup_tasks.sources import fields

START = ("startTimeUnixNano", "start_time", "timeUnixNano", "observedTimeUnixNano")
END = ("endTimeUnixNano", "end_time")
_TIMES = {*START, *END}
_SPAN_STARTS = {*START[:2]}
_VALUES = {"stringValue", "intValue", "doubleValue", "boolValue"}
_OK, _FAILED = (1, "STATUS_CODE_OK", "OK"), (2, "STATUS_CODE_ERROR", "ERROR")


class Event(NamedTuple):
    """A span event: its name, and what it carries."""

    name: str
    content: Mapping[str, Any]


def without_zero_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without times that are 0: protobuf's way to say that there is none."""
    return {name: value for name, value in record.items() if name not in _TIMES or value not in (0, "0")}


def own_attributes(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span or log record; a log record's body counts among them."""
    return {**_body(record), **attributes(record.get("attributes"))}


def resource_attributes(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the resource that wrote a record."""
    return attributes(fields.mapping(record, "resource").get("attributes") or record.get("resource_attributes"))


def events(record: Mapping[str, Any]) -> list[Event]:
    """Return the events of a span, in their order."""
    found = record.get("events")
    return [
        Event(event["name"], attributes(event.get("attributes")))
        for event in (found if isinstance(found, list) else ())
        if isinstance(event, dict) and isinstance(event.get("name"), str)
    ]


def event_name(record: Mapping[str, Any]) -> str:
    """Return the name of the event that a log record is; empty for a span, and for a log record that is none."""
    if record.keys() & _SPAN_STARTS:
        return ""
    name = record.get("eventName") or attributes(record.get("attributes")).get("event.name")
    return name if isinstance(name, str) else ""


def span_id(record: Mapping[str, Any]) -> str | None:
    """Return the ids of trace and span as one, or None where they are not known."""
    trace = fields.text(record, "traceId", "trace_id", ("context", "trace_id"))
    span = fields.text(record, "spanId", "span_id", ("context", "span_id"))
    return f"{trace}:{span}" if trace and span else None


def status(record: Mapping[str, Any], own: Mapping[str, Any]) -> int | None:
    """Return the HTTP status that a span's status and attributes amount to; None where they say nothing."""
    _, code = fields.find(record, (("status", "code"), ("status", "status_code")))
    error = own.get("error.type")
    if error is None and code not in _FAILED:
        return 200 if code in _OK else None
    error = str(own.get("http.response.status_code") or error)
    return int(error) if error.isdecimal() and 400 <= int(error) < 600 else 500


def attributes(value: Any) -> dict[str, Any]:
    """Return attributes as plain values: from OTLP's list of keys and typed values, or as they are."""
    if isinstance(value, list):
        pairs = [pair for pair in value if isinstance(pair, dict) and isinstance(pair.get("key"), str)]
        return {pair["key"]: _plain(pair.get("value")) for pair in pairs}
    return value if isinstance(value, dict) else {}


def _body(record: Mapping[str, Any]) -> dict[str, Any]:
    body = record.get("body")
    if isinstance(body, dict) and body.keys() == {"kvlistValue"}:
        body = _plain(body)
    return body if isinstance(body, dict) else {}


def _plain(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ((kind, inner),) = value.items()
    if kind == "intValue" and isinstance(inner, str):  # 64-bit numbers stand as text
        return int(inner) if inner.removeprefix("-").isdecimal() else inner
    if kind in _VALUES:
        return inner
    values = inner.get("values") if isinstance(inner, dict) else None
    values = values if isinstance(values, list) else []
    if kind == "arrayValue":
        return [_plain(part) for part in values]
    return attributes(values) if kind == "kvlistValue" else None
