"""Logs of Kong, Envoy AI Gateway and Helicone: bodies as sent, counts and times under each gateway's names.

Written after developer.konghq.com/ai-gateway/ai-audit-log-reference and developer.konghq.com/plugins/file-log (Kong),
the file ``site/docs/capabilities/observability/accesslogs.md`` of envoyproxy/ai-gateway (Envoy), and
``HeliconeRequest`` in Helicone's ``packages/llm-mapper/types.ts`` (Helicone).
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract
from warmup_tasks.sources.base import NotARequest, Request, Source
from warmup_tasks.sources.envoy import EnvoySource
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.helicone import HeliconeSource
from warmup_tasks.sources.kong import KongSource
from warmup_tasks.sources.openai import OpenAISource

BODY = {
    "model": "demo",
    "messages": [{"role": "system", "content": "Be brief."}, {"content": "What is open?", "role": "user"}],
    "tools": [{"type": "function", "function": {"name": "z", "parameters": {"b": 1, "a": None}}}],
    "chat_template_kwargs": {"enable_thinking": False},
    "cache_salt": "5a17",
}
ANSWER = {
    "id": "chatcmpl-1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Nothing."}}],
    "usage": {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}},
}
NOON = datetime(2026, 11, 26, 12, 0, 1, 719_000, tzinfo=UTC)
KONG: dict[str, Any] = {
    "workspace": "b4a1e9a2",
    "started_at": 1_795_694_401_719,
    "client_ip": "192.0.2.7",
    "request": {"id": "9ec9264afbbbad5f", "uri": "/v1/chat/completions", "method": "POST", "size": 323},
    "response": {"status": 200, "size": 1036},
    "latencies": {"request": 2_773, "kong": 3, "proxy": 2_770},
    "consumer": {"username": "acme", "id": "c-1"},
    "ai": {
        "proxy": {
            "meta": {"request_model": "demo", "response_model": "demo-2026", "llm_latency": 2_670},
            "usage": {
                "prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43, "time_per_token": 133,
                "time_to_first_token": 270, "prompt_tokens_details": {"cached_tokens": 32},
            },
            "payload": {"request": orjson.dumps(BODY).decode(), "response": orjson.dumps(ANSWER).decode()},
        }
    },
}  # fmt: skip
ENVOY: dict[str, Any] = {
    ":authority": "api.example.org",
    "bytes_received": 105,
    "duration": 1526,
    "genai_backend_name": "default/tars/route/aigw-run/rule/0/ref/0",
    "genai_model_name": "demo",
    "genai_model_name_override": None,
    "genai_tokens_input": 15,
    "genai_tokens_output": 7,
    "genai_tokens_total": 22,
    "method": "POST",
    "response_code": 200,
    "response_flags": "-",
    "start_time": "2026-11-26T12:00:01.719Z",
    "x-envoy-origin-path": "/v1/chat/completions",
    "x-request-id": "83b63da3-45a9",
}
HELICONE: dict[str, Any] = {
    "response_id": "a", "response_created_at": "2026-11-26T12:00:04.000Z", "response_body": ANSWER,
    "response_status": 200, "response_model": "demo-2026", "request_id": "99e2e08c", "request_body": BODY,
    "request_created_at": "2026-11-26T12:00:01.719Z", "request_path": "https://gw.example.org/v1/chat/completions",
    "request_user_id": "u-7", "request_properties": {"Tenant": "acme", "Helicone-Session-Id": "s1"},
    "request_model": "demo", "delay_ms": 1968, "time_to_first_token": 270, "total_tokens": 43, "prompt_tokens": 40,
    "prompt_cache_write_tokens": 0, "prompt_cache_read_tokens": 32, "completion_tokens": 3, "costUSD": 0.1,
}  # fmt: skip


def request(source: Source, record: dict[str, Any]) -> Request:
    mapped = source.read_record(record)
    assert isinstance(mapped, Request)
    return mapped


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


@pytest.mark.parametrize(
    ("source", "record", "latency"), [(KongSource(), KONG, 2773), (HeliconeSource(), HELICONE, 1968)]
)
def test_the_body_is_rebuilt_exactly_as_sent(source: Source, record: dict[str, Any], latency: float) -> None:
    found = request(source, record)
    plain = request(OpenAISource(), {"time": 1_795_694_401, "request": BODY, "response": ANSWER})
    assert found.prompt == plain.prompt
    assert (found.time, found.tenant, found.model, found.cache_salt) == (NOON, "acme", "demo", "5a17")
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (40, 3, 32)
    assert (found.latency_ms, found.ttft_ms, found.status, found.answer_text) == (latency, 270.0, 200, "Nothing.")
    assert found.request_type == "chat"


def kong(**plugin: Any) -> Request:
    return request(KongSource(), {**KONG, "ai": {"proxy": {**KONG["ai"]["proxy"], **plugin}}})


def test_kong_without_payloads_counts_for_timing_with_the_gateways_usage() -> None:
    found = kong(payload=None)
    assert (found.prompt.body_json, found.model, found.request_id) == (None, "demo", "9ec9264afbbbad5f")
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (40, 3, 32)
    assert kong(payload=None, meta={"request_model": "UNSPECIFIED"}).model is None
    assert kong(payload={"request": "not json at all"}).prompt.body_json is None
    assert kong(usage={"prompt_token": 28, "completion_token": 20}, payload=None).input_tokens == 28  # before 3.9


def test_kong_of_older_versions_kept_the_request_beside_the_plugin() -> None:
    plugin = without(KONG["ai"]["proxy"], "payload")
    older = {
        **KONG,
        "ai": {"payload": {"request": orjson.dumps(BODY).decode()}, "ai-request-transformer": {}, "ai-proxy": plugin},
    }
    found = request(KongSource(), older)
    assert found.prompt == kong().prompt
    assert found.cached_tokens == 32
    assert request(KongSource(), without(older, "latencies")).latency_ms == 2_670


def test_what_kong_proxies_besides_models_is_no_request() -> None:
    assert KongSource().read_record(without(KONG, "ai")) == NotARequest("no ai object: not a request to a model")
    assert KongSource().read_record({**KONG, "ai": {"cache": {"cache_status": "Hit"}}}) == NotARequest(
        "no ai object: not a request to a model"
    )


def test_an_embedding_through_kong_is_one() -> None:
    body = orjson.dumps({"model": "e", "input": "What is open?"}).decode()
    record = {**KONG, "request": {"uri": "/v1/embeddings"}, "ai": {"proxy": {"meta": {}, "payload": {"request": body}}}}
    found = request(KongSource(), record)
    assert (found.request_type, found.prompt.body_json) == ("embedding", '{"prompt":"What is open?"}')


def test_envoy_tells_time_and_counts_and_no_prompt() -> None:
    found = request(EnvoySource(), ENVOY)
    assert (found.time, found.request_id, found.model, found.request_type) == (NOON, "83b63da3-45a9", "demo", "chat")
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (15, 7, None)
    assert (found.latency_ms, found.status, found.prompt.body_json) == (1526.0, 200, None)


def test_envoys_default_format_and_its_dashes() -> None:
    record = {
        "start_time": "2026-11-26T12:00:01.719Z", "response_code": "200", "duration": "12", "method": "POST",
        "gen_ai.request.model": "demo", "gen_ai.response.model": "-", "gen_ai.usage.input_tokens": "15",
        "gen_ai.usage.output_tokens": "-", "gen_ai.usage.cache_read.input_tokens": "8", "session.id": "s1",
        "x-envoy-original-path": "/v1/embeddings?x=1", "x-request-id": "r1",
    }  # fmt: skip
    found = request(EnvoySource(), record)
    assert (found.model, found.input_tokens, found.output_tokens, found.cached_tokens) == ("demo", 15, None, 8)
    assert (found.session_id, found.request_type, found.latency_ms, found.status) == ("s1", "embedding", 12.0, 200)


def test_envoys_other_lines_are_no_requests() -> None:
    ground = NotARequest("an access line that names no model")
    assert EnvoySource().read_record({**ENVOY, "genai_model_name": None, "mcp_method": "tools/call"}) == ground
    assert EnvoySource().read_record({**ENVOY, "genai_model_name": "-"}) == ground


def test_helicone_without_bodies_counts_for_timing() -> None:
    found = request(HeliconeSource(), without(HELICONE, "request_body", "response_body", "request_properties"))
    assert (found.prompt.body_json, found.model, found.tenant) == (None, "demo", "u-7")
    assert (found.input_tokens, found.output_tokens, found.cached_tokens, found.session_id) == (40, 3, 32, None)


def test_helicone_exports_lines_arrays_api_answers_and_tables(tmp_path: Path) -> None:
    two = [HELICONE, {**HELICONE, "request_id": "other"}]
    cells = {name: orjson.dumps(v).decode() if isinstance(v, dict) else f"{v}" for name, v in HELICONE.items()}
    quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells.values()]
    contents = {
        "lines.jsonl": b"\n".join(orjson.dumps(record) for record in two),
        "array.json": orjson.dumps(two, option=orjson.OPT_INDENT_2),
        "answer.json": orjson.dumps({"data": two, "error": None}, option=orjson.OPT_INDENT_2),
        "one-line.json": orjson.dumps({"data": two, "error": None}),
        "table.csv": ",".join(cells).encode() + b"\n" + ",".join(quoted).encode() + b"\n",
    }
    for name, content in contents.items():
        summary = run(tmp_path / name, content)
        assert [read.format for read in summary.files] == ["helicone"], name
        assert summary.requests_usable == summary.usable_by_use["qa"] == (1 if name == "table.csv" else 2), name


def test_kong_batches_and_lines_are_recognised(tmp_path: Path) -> None:
    other = {**without(KONG, "ai"), "request": {"id": "2", "uri": "/health"}}
    for name, content in {
        "lines.jsonl": orjson.dumps(KONG) + b"\n" + orjson.dumps(other),
        "batch.json": orjson.dumps([KONG, other]),
    }.items():
        summary = run(tmp_path / name, content)
        assert ([read.format for read in summary.files], summary.requests_usable) == (["kong"], 1), name
        assert summary.not_a_request == 1


def test_envoy_is_recognised_and_says_that_bodies_are_missing(tmp_path: Path) -> None:
    summary = run(tmp_path / "access.log", orjson.dumps(ENVOY) + b"\n")
    assert [read.format for read in summary.files] == ["envoy-ai-gateway"]
    assert "access logs hold no bodies" in summary.files[0].notes[0]


def run(path: Path, content: bytes) -> ExtractionSummary:
    path.write_bytes(content)
    return extract(Lake(f"{path}-lake"), str(path))


@pytest.mark.parametrize(
    ("source", "record"),
    [
        (KongSource(), {**KONG, "ai": "text"}),
        (KongSource(), {**KONG, "ai": {"proxy": {"meta": {}, "payload": {"request": '{"messages": 5}'}}}}),
        (HeliconeSource(), {**HELICONE, "request_body": {"messages": "secret"}}),
        (HeliconeSource(), {**HELICONE, "delay_ms": "secret"}),
        (EnvoySource(), {**ENVOY, "genai_tokens_input": "many"}),
    ],
)
def test_bad_types_are_faults_that_hold_no_content(source: Source, record: dict[str, Any]) -> None:
    with pytest.raises(BadRecordError) as caught:
        source.read_record(record)
    assert caught.value.fault is Fault.BAD_TYPE
    assert "secret" not in str(caught.value)
