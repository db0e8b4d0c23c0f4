"""OpenTelemetry GenAI in each form in which it is stored, with the attribute names of today and of before."""

import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from warmup_tasks.identity import prompt_digest
from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract, reading, registry
from warmup_tasks.sources.base import NotARequest, Request
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.otel import OTelSource, wire

# Values from open-telemetry/semantic-conventions-genai, docs/gen-ai/non-normative/examples-llm-calls.md (tool calls).
INPUT = [
    {"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]},
    {"role": "assistant", "parts": [
        {"type": "tool_call", "id": "call_1", "name": "get_weather", "arguments": {"location": "Paris"}},
    ]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": "rainy, 57°F"}]},
]  # fmt: skip
TOOLS = [
    {"type": "function", "name": "get_weather", "description": "The weather", "parameters": {"type": "object", "b": 1}}
]
OUTPUT = [{"role": "assistant", "parts": [{"type": "text", "content": "Rainy."}], "finish_reason": "stop"}]
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Paris?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"location":"Paris"}'}},
    ]},
    {"role": "tool", "tool_call_id": "call_1", "content": "rainy, 57°F"},
]  # fmt: skip
SENT_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather", "description": "The weather", "parameters": {"type": "object", "b": 1},
        },
    }
]  # fmt: skip
CURRENT: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "demo",
    "gen_ai.response.model": "demo-0613",
    "gen_ai.response.id": "chatcmpl-1",
    "gen_ai.conversation.id": "conv-1",
    "gen_ai.usage.input_tokens": 97,
    "gen_ai.usage.output_tokens": 52,
    "gen_ai.usage.cache_read.input_tokens": 47,
    "gen_ai.response.time_to_first_chunk": 0.25,
    "user.id": "ann",
}
CONTENT: dict[str, Any] = {
    "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
    "gen_ai.input.messages": INPUT,
    "gen_ai.output.messages": OUTPUT,
    "gen_ai.tool.definitions": TOOLS,
}
START = 1795651200123456789


def typed(value: Any) -> dict[str, Any]:
    """A value as OTLP JSON has it: opentelemetry-proto's JSON mapping, 64-bit numbers as text."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": typed(inner)} for key, inner in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(inner) for inner in value]}}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": typed(value)} for key, value in attributes.items()]


def as_json(attributes: dict[str, Any]) -> dict[str, Any]:
    """Structured content becomes JSON text, as spans carry it where structure is not supported."""
    return {k: orjson.dumps(v).decode() if isinstance(v, list) else v for k, v in attributes.items()}


def span(attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
        "spanId": "00f067aa0ba902b7",
        "name": "chat demo",
        "startTimeUnixNano": str(START),
        "endTimeUnixNano": str(START + 2_500_000_000),
        "attributes": pairs(attributes),
        "status": {"code": 1},
        **more,
    }


def traces(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": pairs({"service.name": "shop", "tenant.id": "acme/eu"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def logs(*records: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": list(records)}]}]}


def mapped(record: dict[str, Any]) -> Request:
    request = OTelSource().read_record(record)
    assert isinstance(request, Request)
    return request


def read(tmp_path: Path, data: bytes, name: str = "log.json") -> tuple[ExtractionSummary, list[dict[str, Any]]]:
    (tmp_path / name).write_bytes(data)
    lake = Lake(str(tmp_path / "lake"))
    summary = extract(lake, str(tmp_path / name))
    parts = (summary.requests_usable, summary.rows_quarantined, summary.duplicates, summary.not_a_request)
    assert summary.requests_read == sum(parts)
    days = lake.partitions("requests")
    return summary, [row for day in days for row in lake.read(f"requests/{day}", "requests").to_pylist()]


@pytest.mark.parametrize("content", [CONTENT, as_json(CONTENT)])
def test_a_span_of_today_is_rebuilt_as_it_was_sent(content: dict[str, Any]) -> None:
    request = mapped(span({**CURRENT, **content}))
    assert request.time == datetime(2026, 11, 26, 0, 0, 0, 123456, tzinfo=UTC)
    assert (request.request_id, request.model, request.session_id) == ("chatcmpl-1", "demo", "conv-1")
    assert (request.tenant, request.status, request.request_type) == ("ann", 200, "chat")
    assert (request.input_tokens, request.output_tokens, request.cached_tokens) == (97, 52, 47)
    assert (request.ttft_ms, request.latency_ms, request.answer_text) == (250.0, 2500.0, "Rainy.")
    assert request.prompt.body_json is not None
    assert orjson.loads(request.prompt.body_json) == {"messages": MESSAGES, "tools": SENT_TOOLS}
    assert request.prompt.sha256 == prompt_digest(MESSAGES, SENT_TOOLS)
    assert not request.is_truncated


def test_older_names_are_understood() -> None:
    request = mapped(
        span(
            {
                "gen_ai.system": "openai",
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "demo",
                "gen_ai.prompt": '[{"role": "user", "content": "Hi"}]',
                "gen_ai.completion": '[{"role": "assistant", "content": "Hello"}]',
                "gen_ai.usage.prompt_tokens": 4,
                "gen_ai.usage.completion_tokens": 2,
            }
        )
    )
    assert request.prompt.body_json == '{"messages":[{"role":"user","content":"Hi"}]}'
    assert (request.input_tokens, request.output_tokens, request.answer_text) == (4, 2, "Hello")
    assert request.request_id == "4bf92f3577b34da6a3ce929d0e0e4736:00f067aa0ba902b7"


def test_prompts_in_numbered_attributes() -> None:
    # traceloop/openllmetry, opentelemetry-semantic-conventions-ai and its OpenAI instrumentation
    request = mapped(
        span(
            {
                "gen_ai.request.model": "demo",
                "gen_ai.prompt.10.role": "user",
                "gen_ai.prompt.10.content": '[{"type": "text", "text": "And now?"}]',
                "gen_ai.prompt.0.role": "user",
                "gen_ai.prompt.0.content": "Weather?",
                "gen_ai.prompt.1.role": "assistant",
                "gen_ai.prompt.1.tool_calls.0.id": "c1",
                "gen_ai.prompt.1.tool_calls.0.name": "get_weather",
                "gen_ai.prompt.1.tool_calls.0.arguments": '{"location": "Paris"}',
                "gen_ai.prompt.2.role": "tool",
                "gen_ai.prompt.2.content": "rainy",
                "gen_ai.prompt.2.tool_call_id": "c1",
                "llm.request.functions.0.name": "get_weather",
                "llm.request.functions.0.description": "The weather",
                "llm.request.functions.0.parameters": '{"type": "object"}',
                "gen_ai.completion.0.role": "assistant",
                "gen_ai.completion.0.content": "Rainy.",
            }
        )
    )
    body = orjson.loads(request.prompt.body_json or "")
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "user"]
    assert body["messages"][1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"location": "Paris"}'}}
    ]
    assert body["messages"][3]["content"] == [{"type": "text", "text": "And now?"}]
    assert body["tools"][0]["function"]["parameters"] == {"type": "object"}
    assert (request.answer_text, request.is_truncated) == ("Rainy.", False)


def test_content_in_the_details_event_of_the_span() -> None:
    event = {"name": "gen_ai.client.inference.operation.details", "attributes": pairs(CONTENT)}
    request = mapped(span(CURRENT, events=[event]))
    assert request.prompt.sha256 == prompt_digest(MESSAGES, SENT_TOOLS)
    assert request.answer_text == "Rainy."


def test_one_event_a_message_as_the_conventions_had_it_until_v1_36() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    events = [
        ("gen_ai.system.message", {"gen_ai.system": "openai", "content": "Be brief."}),
        ("gen_ai.user.message", {"content": "Hi"}),
        ("gen_ai.assistant.message", {"tool_calls": orjson.dumps(calls).decode()}),
        ("gen_ai.tool.message", {"id": "c1", "content": "done"}),
        ("gen_ai.choice", {"index": 0, "message": {"role": "assistant", "content": "Done."}}),
    ]
    recorded = [{"name": name, "attributes": pairs(attributes)} for name, attributes in events]
    request = mapped(span(CURRENT, events=recorded))
    assert orjson.loads(request.prompt.body_json or "")["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
    ]
    assert (request.answer_text, request.is_truncated) == ("Done.", True)  # a tool answered, but none is defined
    whole = mapped(span({"gen_ai.request.model": "m", "gen_ai.system": "openai"}, events=recorded[:2]))
    assert not whole.is_truncated
    assert mapped(span(CURRENT, events=recorded[:2], droppedEventsCount=1)).is_truncated
    prompt = {
        "name": "gen_ai.content.prompt",
        "attributes": pairs({"gen_ai.prompt": '[{"role":"user","content":"Q"}]'}),
    }
    assert mapped(span(CURRENT, events=[prompt])).prompt.body_json == '{"messages":[{"role":"user","content":"Q"}]}'


def test_system_instructions_are_part_of_the_prompt_once() -> None:
    question = {"role": "user", "content": "Hi"}
    for instructions in (
        [{"type": "text", "content": "Be brief."}],
        "Be brief.",
        '[{"type":"text","content":"Be brief."}]',
    ):
        for logged in ([question], [{"role": "system", "content": "Be brief."}, question]):
            attributes = {"gen_ai.system_instructions": instructions, "gen_ai.input.messages": logged}
            body = orjson.loads(mapped(span({**CURRENT, **attributes})).prompt.body_json or "")
            assert body["messages"] == [{"role": "system", "content": "Be brief."}, question]
    other = {"gen_ai.system_instructions": "No jokes.", "gen_ai.input.messages": [{"role": "system", "content": "Hi"}]}
    body = orjson.loads(mapped(span({**CURRENT, **other})).prompt.body_json or "")
    assert [message["content"] for message in body["messages"]] == ["No jokes.", "Hi"]


@pytest.mark.parametrize(
    "content",
    [
        {"gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "conte'},
        {"gen_ai.input.messages": [{"role": "user", "parts": [{"type": "blob", "content": "aGk="}]}]},
        {"gen_ai.input.messages": [{"role": "assistant", "parts": [{"type": "reasoning", "content": "Hm"}]}]},
        {"gen_ai.input.messages": INPUT},
        {"gen_ai.input.messages": INPUT, "gen_ai.tool.definitions": [{"type": "function", "name": "get_weather"}]},
        {"gen_ai.input.messages": INPUT[:1], "gen_ai.output.messages": INPUT[1:2]},
    ],
    ids=["cut off", "image", "thought", "no tools", "tools without schema", "tools only by the answer"],
)
def test_what_is_only_partly_logged_is_never_warmed(content: dict[str, Any]) -> None:
    assert mapped(span({**CURRENT, **content})).is_truncated


def test_completions_and_embeddings() -> None:
    completion = {"gen_ai.operation.name": "text_completion", "gen_ai.prompt": "1 + 1 ="}
    assert mapped(span({**CURRENT, **completion})).prompt.body_json == '{"prompt":"1 + 1 ="}'
    embedding = mapped(span({**CURRENT, "gen_ai.operation.name": "embeddings", "gen_ai.prompt.0.content": "cat"}))
    assert (embedding.request_type, embedding.prompt.body_json) == ("embedding", '{"prompt":"cat"}')


def test_the_engines_own_spans_have_times_without_content() -> None:
    # vllm/tracing: span llm_request
    request = mapped(
        span(
            {
                "gen_ai.request.id": "cmpl-9",
                "gen_ai.response.model": "demo",
                "gen_ai.usage.prompt_tokens": 12,
                "gen_ai.latency.time_to_first_token": 0.125,
            },
            status={},
        )
    )
    assert (request.request_id, request.model, request.ttft_ms, request.status) == ("cmpl-9", "demo", 125.0, None)
    assert (request.prompt.body_json, request.is_truncated) == (None, False)


@pytest.mark.parametrize(
    ("status", "attributes", "expected"),
    [
        ({"code": 2}, {}, 500),
        ({"code": "STATUS_CODE_ERROR"}, {"error.type": "429"}, 429),
        ({}, {"error.type": "timeout"}, 500),
        ({}, {"error.type": "x", "http.response.status_code": 503}, 503),
        ({"code": 0}, {}, None),
    ],
)
def test_errors_have_a_status(status: Any, attributes: dict[str, Any], expected: int | None) -> None:
    assert mapped(span({**CURRENT, **attributes}, status=status)).status == expected


def test_spans_and_log_records_that_are_no_request_say_why() -> None:
    grounds = [
        OTelSource().read_record(record)
        for record in (
            span({"http.request.method": "GET"}),
            span({**CURRENT, "gen_ai.operation.name": "execute_tool"}),
            span({**CURRENT, "gen_ai.operation.name": "invoke_agent"}),
            {"timeUnixNano": str(START), "body": {"stringValue": "hello"}, "attributes": []},
            {"timeUnixNano": str(START), "eventName": "gen_ai.user.message", "body": typed({"content": "Hi"})},
            {"name": "gen_ai.client.token.usage", "histogram": {}},
        )
    ]
    assert [ground.ground for ground in grounds if isinstance(ground, NotARequest)] == [
        "span without a model call",
        "GenAI operation that is no model call",
        "GenAI operation that is no model call",
        "log record without a model call",
        "one message as a log record; the details event would have the whole prompt",
        "metric",
    ]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        (span(CURRENT, startTimeUnixNano=None), Fault.NO_TIME),
        (span(CURRENT, startTimeUnixNano="0"), Fault.NO_TIME),
        (span({**CURRENT, "gen_ai.usage.input_tokens": "many"}), Fault.BAD_TYPE),
        (span({**CURRENT, "gen_ai.input.messages": [7]}), Fault.BAD_TYPE),
        (span({**CURRENT, "gen_ai.input.messages": [{"role": "user", "parts": [7]}]}), Fault.BAD_TYPE),
    ],
)
def test_bad_spans_go_to_quarantine(record: dict[str, Any], fault: Fault) -> None:
    with pytest.raises(BadRecordError) as caught:
        OTelSource().read_record(record)
    assert caught.value.fault is fault


def test_json_lines_of_the_collectors_file_exporter(tmp_path: Path) -> None:
    # opentelemetry.io/docs/specs/otel/protocol/file-exporter: one TracesData a line
    other = span({**CURRENT, "gen_ai.response.id": "2"}, spanId="02")
    data = [orjson.dumps(traces(span({**CURRENT, **CONTENT}), span({}))), b"broken", orjson.dumps(traces(other))]
    summary, rows = read(tmp_path, b"\n".join(data) + b"\n")
    assert summary.files[0].format == "otel"
    assert summary.files[0].ground == "OpenTelemetry spans or log records in 2 of 3 lines"
    assert (summary.requests_read, summary.requests_usable, summary.not_a_request) == (4, 2, 1)
    assert summary.quarantined_by_reason == {Fault.NOT_JSON: 1}
    assert sorted((row["source_line"], row["tenant"]) for row in rows) == [(1, "ann"), (4, "ann")]
    assert summary.usable_by_use == {"prefix": 1, "embedding": 1, "qa": 1, "timing": 2}


def test_a_batch_on_one_line_may_be_longer_than_a_record(tmp_path: Path) -> None:
    long = [{"role": "user", "content": "x" * 1_000_000}]
    spans = [
        span({**CURRENT, "gen_ai.response.id": f"r{number}", "gen_ai.input.messages": orjson.dumps(long).decode()})
        for number in range(9)
    ]
    data = orjson.dumps(traces(span({}))) + b"\n" + orjson.dumps(traces(*spans)) + b"\n"
    summary, _ = read(tmp_path, data)
    assert (summary.requests_usable, summary.not_a_request, summary.rows_quarantined) == (9, 1, 0)


def test_the_tenant_of_the_resource_stands_in(tmp_path: Path) -> None:
    attributes = {key: value for key, value in CURRENT.items() if key != "user.id"}
    _, (row,) = read(tmp_path, orjson.dumps(traces(span(attributes))))
    assert row["tenant"] == "acme/eu"


def test_a_whole_document_spread_over_lines(tmp_path: Path) -> None:
    spans = [span({**CURRENT, "gen_ai.response.id": f"r{n}"}, spanId=f"{n:016x}") for n in range(3)]
    summary, rows = read(tmp_path, orjson.dumps(traces(*spans), option=orjson.OPT_INDENT_2))
    assert summary.requests_usable == len(rows) == 3
    assert summary.files[0].ground == "OpenTelemetry spans or log records in 1 of 1 records of a JSON document"


def test_a_span_and_its_details_event_are_one_request(tmp_path: Path) -> None:
    event = {
        "timeUnixNano": str(START + 2_000_000_000),
        "eventName": "gen_ai.client.inference.operation.details",
        "attributes": pairs({**CURRENT, **CONTENT}),
        "traceId": "4bf92f3577b34da6a3ce929d0e0e4736",
        "spanId": "00f067aa0ba902b7",
    }
    data = orjson.dumps(traces(span(CURRENT))) + b"\n" + orjson.dumps(logs(event)) + b"\n"
    summary, (row,) = read(tmp_path, data)
    assert (summary.requests_usable, summary.duplicates) == (1, 1)
    assert row["prompt_sha256"] == prompt_digest(MESSAGES, SENT_TOOLS)


def test_spans_of_the_sdks_console_exporter(tmp_path: Path) -> None:
    # opentelemetry-sdk, ConsoleSpanExporter: Span.to_json, one document after the other
    shown = {
        "name": "chat demo",
        "context": {"trace_id": "0x1", "span_id": "0x2", "trace_state": "[]"},
        "start_time": "2026-11-26T00:00:00.123456Z",
        "end_time": "2026-11-26T00:00:01.123456Z",
        "status": {"status_code": "OK"},
        "attributes": {"gen_ai.request.model": "demo", "gen_ai.input.messages": orjson.dumps(INPUT[:1]).decode()},
        "events": [],
        "resource": {"attributes": {"service.name": "shop"}},
    }
    data = orjson.dumps(shown, option=orjson.OPT_INDENT_2) + b"\n"
    summary, rows = read(tmp_path, data + data.replace(b"0x2", b"0x3"))
    row = min(rows, key=lambda row: str(row["request_id"]))
    assert (summary.files[0].format, summary.requests_usable) == ("otel", 2)
    assert (row["request_id"], row["status"], row["latency_ms"]) == ("0x1:0x2", 200, 1000.0)
    assert row["body_json"] == '{"messages":[{"role":"user","content":"Weather in Paris?"}]}'


def test_every_collected_span_is_read(tmp_path: Path, data_dir: Path) -> None:
    lake = Lake(str(tmp_path))
    summary = extract(lake, str(data_dir / "otel_genai"))
    logged = {path.name: orjson.loads(path.read_bytes()) for path in (data_dir / "otel_genai").glob("*.json")}
    assert {read.file: read.records for read in summary.files} == {n: doc["span_count"] for n, doc in logged.items()}
    assert (summary.requests_read, summary.rows_quarantined, summary.not_a_request) == (73, 0, 0)
    # simple_chain_alt.json holds the three spans of simple_chain.json again, under the same ids
    assert (summary.requests_usable, summary.duplicates) == (70, 3)
    assert summary.usable_by_use == {"prefix": 70, "embedding": 70, "qa": 70, "timing": 70}
    rows = [row for day in summary.days for row in lake.read(f"requests/{day}", "requests").to_pylist()]
    for row in rows:
        sent = logged[row["source_file"]]["spans"][row["source_line"] - 1]["attributes"]["gen_ai.input.messages"]
        assert orjson.loads(row["body_json"]) == {"messages": orjson.loads(sent)}
        assert not row["is_truncated"]


def any_value(value: Any) -> AnyValue:
    if isinstance(value, dict):
        return AnyValue(kvlist_value=KeyValueList(values=key_values(value)))
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[any_value(inner) for inner in value]))
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(double_value=value) if isinstance(value, float) else AnyValue(string_value=value)


def key_values(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def traces_message(*ids: str, **attributes: Any) -> bytes:
    message = TracesData()
    for request_id in ids:
        group = message.resource_spans.add()
        group.resource.attributes.extend(key_values({"service.name": "shop"}))
        one = group.scope_spans.add().spans.add(
            trace_id=bytes(range(16)), span_id=bytes(8), start_time_unix_nano=START, end_time_unix_nano=START + 10**9
        )
        one.attributes.extend(key_values({**CURRENT, **CONTENT, "gen_ai.response.id": request_id, **attributes}))
        one.status.code = 1
    return message.SerializeToString()


def logs_message(*ids: str) -> bytes:
    message = LogsData()
    for request_id in ids:
        group = message.resource_logs.add()
        group.resource.attributes.extend(key_values({"service.name": "shop"}))
        record = group.scope_logs.add().log_records.add(
            observed_time_unix_nano=START, event_name="gen_ai.client.inference.operation.details"
        )
        record.attributes.extend(key_values({**CURRENT, **CONTENT, "gen_ai.response.id": request_id}))
    return message.SerializeToString()


def metrics_message() -> bytes:
    message = MetricsData()
    group = message.resource_metrics.add()
    group.resource.attributes.extend(key_values({"service.name": "shop"}))
    metric = group.scope_metrics.add().metrics.add(name="gen_ai.client.token.usage")
    metric.sum.data_points.add(time_unix_nano=START, as_int=5)
    return message.SerializeToString()


def framed(*messages: bytes) -> bytes:
    """As opentelemetry-collector-contrib, exporter/fileexporter: each behind 4 bytes, big endian."""
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


def varint_framed(*messages: bytes) -> bytes:
    return b"".join(wire._as_varint(len(message)) + message for message in messages)


def zstd(message: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(message, asbytes=True)
    return packed


PARTS = (traces_message("a", "b"), traces_message("c"))


@pytest.mark.parametrize(
    ("data", "framing"),
    [
        (framed(*PARTS), "behind 4-byte lengths"),
        (framed(*map(zstd, PARTS)), "behind 4-byte lengths"),
        (varint_framed(*PARTS), "behind varint lengths"),
        (traces_message("a", "b", "c"), "in one message"),
        (logs_message("a", "b", "c"), "in one message"),
        (framed(logs_message("a"), PARTS[0], PARTS[1]), "behind 4-byte lengths"),
        (zstd(framed(*PARTS)), "behind 4-byte lengths"),
    ],
    ids=["framed", "framed and compressed", "varint", "single", "single logs", "mixed", "compressed file"],
)
def test_binary_messages_in_every_framing(tmp_path: Path, data: bytes, framing: str) -> None:
    summary, rows = read(tmp_path, data, "traces.bin")
    assert summary.files[0].ground == f"OTLP protobuf {framing}"
    assert sorted(row["request_id"] for row in rows) == ["a", "b", "c"]
    assert {row["prompt_sha256"] for row in rows} == {prompt_digest(MESSAGES, SENT_TOOLS)}
    assert {row["time"] for row in rows} == {datetime(2026, 11, 26, 0, 0, 0, 123456, tzinfo=UTC)}
    assert summary.rows_quarantined == 0


def test_json_that_the_exporter_compressed_line_by_line(tmp_path: Path) -> None:
    data = framed(zstd(orjson.dumps(traces(span({**CURRENT, **CONTENT})))))
    _, (row,) = read(tmp_path, data, "traces.json")
    assert row["prompt_sha256"] == prompt_digest(MESSAGES, SENT_TOOLS)


def test_binary_metrics_are_no_requests(tmp_path: Path) -> None:
    summary, rows = read(tmp_path, framed(metrics_message(), PARTS[0]), "all.bin")
    assert (len(rows), summary.not_a_request_by_ground) == (2, {"metric": 1})


def test_a_bad_binary_message_costs_no_other_one(tmp_path: Path) -> None:
    bad = b"\x0a\x05\x0a\x7fabc"
    summary, rows = read(tmp_path, framed(PARTS[0], bad, PARTS[1]) + b"\0\0\1\0rest", "traces.bin")
    assert len(rows) == 3
    assert summary.quarantined_by_reason == {Fault.BAD_MESSAGE: 1, Fault.TRUNCATED_DOCUMENT: 1}
    raws = list(wire.records(iter([framed(PARTS[0], PARTS[1])]), wire.Framing.FIXED, (), len(PARTS[1])))
    assert [raw.line.fault for raw in raws] == [Fault.RECORD_TOO_LONG, None]


@pytest.mark.parametrize(
    "data", [b"\n\n\n\n\n\n", b"\n{}\n", b"hello\n", b"U\n\n\n\n", b"", b"\0\0\0\0", b'{"a": 1}\n']
)
def test_text_is_not_taken_for_binary_messages(data: bytes) -> None:
    assert wire.framing_of(data) is None


def test_requests_and_agents_of_one_log_in_auto_recognition(tmp_path: Path) -> None:
    (tmp_path / "spans.jsonl").write_bytes(orjson.dumps(traces(span(CURRENT))) + b"\n")
    (file,) = reading.discover(str(tmp_path))
    choice = registry.choose(file, "auto")
    assert choice.source is not None
    assert choice.source.name == "otel"
