"""OpenTelemetry, Langfuse and LiteLLM: no record crashes them, and every record of any file is accounted for."""

import tempfile
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake import Lake
from warmup_tasks.sources import extract
from warmup_tasks.sources.base import Request
from warmup_tasks.sources.faults import BadRecordError
from warmup_tasks.sources.langfuse import LangfuseSource
from warmup_tasks.sources.litellm import LiteLLMSource
from warmup_tasks.sources.otel import OTelSource
from warmup_tasks.sources.structured import StructuredSource

OTEL = (
    "startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "start_time", "traceId", "spanId", "attributes", "events",
    "eventName", "body", "resource", "status", "code", "name", "key", "value", "droppedEventsCount", "kvlistValue",
    "arrayValue", "values", "stringValue", "intValue", "gen_ai.operation.name", "gen_ai.request.model", "parts",
    "gen_ai.input.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions", "gen_ai.output.messages",
    "gen_ai.prompt.0.role", "gen_ai.prompt.0.content", "gen_ai.prompt", "error.type", "role", "content", "type",
    "gen_ai.usage.input_tokens", "gen_ai.prompt.0.tool_calls.1.name", "resourceSpans", "scopeSpans", "spans",
)  # fmt: skip
LANGFUSE = (
    "type", "traceId", "trace_id", "startTime", "start_time", "endTime", "input", "output", "usageDetails", "usage",
    "level", "metadata", "toolDefinitions", "userId", "messages", "tools", "role", "content", "parts", "prompt",
    "additional_kwargs", "tool_calls", "function", "observations", "trace", "data", "input_cached_tokens", "model",
)  # fmt: skip
LITELLM = (
    "request_id", "call_type", "startTime", "endTime", "completionStartTime", "metadata", "messages", "response",
    "proxy_server_request", "body", "cache_hit", "team_id", "model", "custom_llm_provider", "status", "prompt_tokens",
    "prompt", "input", "tools", "choices", "message", "content", "role", "usage_object", "error_information", "data",
)  # fmt: skip
FORMATS: dict[str, tuple[type[StructuredSource], tuple[str, ...]]] = {
    "otel": (OTelSource, OTEL), "langfuse": (LangfuseSource, LANGFUSE), "litellm": (LiteLLMSource, LITELLM),
}  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=4),
    st.sampled_from([
        "2026-11-26T02:00:00Z", "1795651200123456789", "chat", "GENERATION", "EMBEDDING", "acompletion", "aembedding",
        "text", "tool_call", "user", "tool", "gen_ai.user.message", "gen_ai.client.inference.operation.details", "{}",
        "[", "[]", '[{"role":"user"}]', '{"messages":[{"role":"user","parts":[1]}]}', "failure", "True", "429",
    ]),
)  # fmt: skip


def records(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(names), inner, max_size=4),
        max_leaves=10,
    )
    return st.dictionaries(st.sampled_from(names), values, max_size=9)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_record_crashes_a_format(name: str, data: st.DataObject) -> None:
    source, names = FORMATS[name]
    record = orjson.loads(orjson.dumps(data.draw(records(names))))
    try:
        mapped = source().read_record(record)
    except BadRecordError:
        return
    assert not isinstance(mapped, Request) or len(mapped.identity()) > 0


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_record_of_a_file_is_accounted_for(name: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(records(FORMATS[name][1]), max_size=6))
    content = b"\n".join(orjson.dumps(row) for row in rows) if data.draw(st.booleans()) else orjson.dumps(rows)
    content += data.draw(st.binary(max_size=8))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "log.json").write_bytes(content)
        try:
            first = extract(Lake(f"{folder}/lake"), f"{folder}/log.json", name)
        except ConfigurationError:
            return
        parts = (first.requests_usable, first.rows_quarantined, first.duplicates, first.not_a_request)
        assert first.requests_read == sum(parts)
        assert extract(Lake(f"{folder}/lake"), f"{folder}/log.json", name).held() == first.held()
