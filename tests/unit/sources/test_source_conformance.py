"""Every registered log format does what a log format must do; a new one gives its sample here."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import source_checks
from tests.support.source_checks import SECRET, LogSample
from warmup_tasks.sources.base import Source
from warmup_tasks.sources.registry import SOURCES

HASHES = [2**64 - 1, 2**63, 5]


def json_sample(make: Callable[[int], object], *, has_prompts: bool = True) -> LogSample:
    return LogSample([orjson.dumps(make(number)) for number in range(4)], has_prompts=has_prompts)


def text(number: int) -> str:
    return f"Where is {SECRET} number {number}?"


def time(number: int) -> str:
    return f"2026-11-26T02:00:{number:02d}Z"


def body(number: int) -> dict[str, object]:
    return {"model": "demo", "messages": [{"role": "user", "content": text(number)}]}


def answer(number: int) -> dict[str, object]:
    return {"choices": [{"message": {"content": SECRET}}], "usage": {"prompt_tokens": 9, "completion_tokens": number}}


def span(number: int) -> dict[str, object]:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "demo",
        "gen_ai.input.messages": orjson.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": text(number)}]}]
        ).decode(),
    }
    start = 1_795_658_400_000_000_000 + number * 10**9
    return {
        "name": "chat demo", "traceId": f"{number:032x}", "spanId": f"{number + 1:016x}",
        "startTimeUnixNano": f"{start}", "endTimeUnixNano": f"{start + 10**9}",
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
    }  # fmt: skip


def generation(number: int) -> dict[str, object]:
    return {
        "id": f"g{number}", "trace_id": f"t{number}", "type": "GENERATION", "start_time": time(number),
        "end_time": time(number + 1), "provided_model_name": "demo", "input": body(number)["messages"],
        "output": {"role": "assistant", "content": SECRET}, "usage_details": {"input": 9, "output": 2},
    }  # fmt: skip


def spend(number: int) -> dict[str, object]:
    return {
        "request_id": f"r{number}", "call_type": "acompletion", "startTime": time(number), "endTime": time(number + 1),
        "model": "demo", "prompt_tokens": 9, "completion_tokens": 2, "cache_hit": "False", "status": "success",
        "messages": {}, "proxy_server_request": body(number), "response": answer(number), "metadata": "{}",
    }  # fmt: skip


def kong(number: int) -> dict[str, object]:
    payload = {"request": orjson.dumps(body(number)).decode(), "response": orjson.dumps(answer(number)).decode()}
    return {
        "started_at": 1_795_658_400_000 + number, "request": {"id": f"r{number}", "uri": "/v1/chat/completions"},
        "response": {"status": 200}, "latencies": {"request": 9},
        "ai": {"proxy": {"meta": {"request_model": "demo"}, "usage": {"prompt_tokens": 9}, "payload": payload}},
    }  # fmt: skip


def envoy(number: int) -> dict[str, object]:
    return {
        "start_time": time(number), "x-request-id": f"r{number}", "genai_model_name": "demo", "genai_tokens_input": 9,
        "response_code": 200, "duration": 7, "method": "POST", "x-envoy-origin-path": "/v1/chat/completions",
    }  # fmt: skip


def helicone(number: int) -> dict[str, object]:
    return {
        "request_id": f"r{number}", "request_created_at": time(number), "request_body": body(number), "delay_ms": 9,
        "response_body": answer(number), "response_status": 200, "request_path": "/v1/chat/completions",
    }  # fmt: skip


def vllm(number: int) -> bytes:
    head = f"(APIServer pid=1) INFO 11-26 02:00:0{number} [request_logger.py:65] "
    prompt = f"prompt: {text(number)!r}, prompt_token_ids: [1, 2], prompt_embeds shape: None."
    details = f"Request cmpl-{number}-0 details: {prompt}"
    received = f"Received request cmpl-{number}-0: params: SamplingParams(n=1), lora_request: None."
    return f"{head.replace('INFO', 'DEBUG')}{details}\n{head}{received}".encode()


SAMPLES: dict[str, LogSample] = {
    "normalised": json_sample(
        lambda n: {
            "record": "request",
            "time": time(n),
            "prompt": text(n),
            "answer_text": SECRET,
            "request_id": f"r{n}",
        }
    ),
    "lake-table": json_sample(
        lambda n: {
            "time": time(n),
            "body_json": orjson.dumps({"prompt": text(n)}).decode(),
            "request_type": "completion",
            "request_id": f"r{n}",
            "answer_text": SECRET,
        }
    ),
    "agent-text": json_sample(
        lambda n: {"timestamp": 1_795_658_400_000_000 + n, "input": text(n), "output": SECRET, "session_id": "s"}
    ),
    "openai": json_sample(
        lambda n: {"time": time(n), "request_id": f"r{n}", "request": body(n), "response": answer(n), "tenant": "acme"}
    ),
    "otel": json_sample(lambda n: {"resourceSpans": [{"scopeSpans": [{"spans": [span(n)]}]}]}),
    "langfuse": json_sample(generation),
    "litellm": json_sample(spend),
    "kong": json_sample(kong),
    "envoy-ai-gateway": json_sample(envoy, has_prompts=False),
    "helicone": json_sample(helicone),
    "mooncake": json_sample(
        lambda n: {"timestamp": n * 1000, "input_length": 1100, "output_length": n, "hash_ids": HASHES},
        has_prompts=False,
    ),
    "qwen-bailian": json_sample(
        lambda n: {
            "chat_id": n,
            "parent_chat_id": -1,
            "timestamp": n / 8,
            "input_length": 40,
            "output_length": 3,
            "type": "text",
            "turn": 1,
            "hash_ids": HASHES,
        },
        has_prompts=False,
    ),
    "coding-sessions": json_sample(
        lambda n: {
            "id": f"s{n}",
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": [{"t": 1.5, "type": "n", "model": "m", "in": 200, "out": 9, "hash_ranges": [[1, 3]]}],
        },
        has_prompts=False,
    ),
    "azure-llm": LogSample(
        [f"2023-11-16 18:15:4{n}.6805900,374,44".encode() for n in range(4)],
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n",
        has_prompts=False,
    ),
    "vllm-log": LogSample([vllm(n) for n in range(4)]),
}

every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_every_source_has_a_sample_and_a_section_in_the_docs() -> None:
    assert set(SAMPLES) == {source.name for source in SOURCES}
    page = (Path(__file__).parents[3] / "docs" / "sources.md").read_text()
    assert [source.name for source in SOURCES if f"`{source.name}`" not in page] == []


@every_source
def test_a_source_is_recognised(source: Source) -> None:
    source_checks.is_recognised(source, SAMPLES[source.name])


@every_source
def test_a_source_reads_every_request(source: Source) -> None:
    source_checks.reads_every_request(source, SAMPLES[source.name])


@every_source
def test_a_source_keeps_files_apart(source: Source) -> None:
    source_checks.keeps_files_apart(source, SAMPLES[source.name])


@every_source
@settings(few, max_examples=3)
@given(seed=st.integers(0, 1000))
def test_order_does_not_matter(source: Source, seed: int) -> None:
    source_checks.does_not_mind_order(source, SAMPLES[source.name], seed)


@every_source
@settings(few, max_examples=8)
@given(
    garbage=st.lists(
        st.binary(max_size=40)
        | st.sampled_from(
            [b"\0", b"\xff\xfe", b"null", b'"x"', b"[1]", b'{"a":' * 200, b"Received request x: prompt: 'a"]
        ),
        max_size=4,
    )
)
def test_garbage_takes_nothing_with_it(source: Source, garbage: list[bytes]) -> None:
    lines = [part.replace(b"\n", b" ") for part in garbage]
    source_checks.survives_garbage(source, SAMPLES[source.name], lines)


@every_source
@few
@given(at=st.floats(0, 1))
def test_a_cut_file_never_becomes_another_prompt(source: Source, at: float) -> None:
    source_checks.survives_truncation(source, SAMPLES[source.name], at)


@every_source
@settings(few, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_faults_hold_no_content(source: Source, seed: int) -> None:
    source_checks.tells_no_content(source, SAMPLES[source.name], seed)
