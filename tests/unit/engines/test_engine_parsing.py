"""What engines send, read into values: usage, metrics, refusals, streamed pieces, events, counters, epochs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from warmup_tasks.engines import kv_events, refusals, wire
from warmup_tasks.engines.base import EngineMetrics, GenerationRequest, KvEvent
from warmup_tasks.engines.counters import cached_tokens_between
from warmup_tasks.engines.epochs import epoch_of
from warmup_tasks.engines.metrics import parse_metrics
from warmup_tasks.engines.usage import cached_tokens
from warmup_tasks.errors import ConfigurationError, MissingMetricError, RejectItemError, RetryLaterError
from warmup_tasks.items import PromptBody, Reason

PAGE = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79599174389e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 138.0
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.7959917686724908e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 32.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 5.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 140.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",num_gpu_blocks="4096"} 1.0
"""


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({"prompt_tokens": 9}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
        ({"prompt_tokens_details": {}}, None),
        ({"prompt_tokens_details": {"cached_tokens": True}}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 512}}, 512),
    ],
)
def test_usage_that_says_nothing_is_not_zero(usage: dict[str, Any] | None, expected: int | None) -> None:
    assert cached_tokens(usage) == expected


def test_metrics_page_is_read() -> None:
    assert parse_metrics(PAGE) == EngineMetrics(
        process_start_s=1795991743.89,
        prefix_queries_tokens=138,
        prefix_hits_tokens=32,
        prompt_tokens=140,
        kv_usage_share=0.25,
        running=2,
        waiting=1,
        block_size=32,
        capacity_blocks=4096,
    )


@pytest.mark.parametrize("name", ["prefix_cache_hits_total", "prompt_tokens_total", "cache_config_info"])
def test_missing_metric_is_an_error_that_names_it(name: str) -> None:
    page = "\n".join(line for line in PAGE.splitlines() if not line.startswith(f"vllm:{name}"))
    with pytest.raises(MissingMetricError, match=f"vllm:{name}"):
        parse_metrics(page)


def test_retired_metric_names_are_recognised() -> None:
    page = PAGE.replace("vllm:prefix_cache_", "vllm:gpu_prefix_cache_")
    with pytest.raises(MissingMetricError, match="retired"):
        parse_metrics(page)


def test_unresolved_capacity_is_an_error() -> None:
    with pytest.raises(MissingMetricError, match="num_gpu_blocks"):
        parse_metrics(PAGE.replace('num_gpu_blocks="4096"', 'num_gpu_blocks="None"'))


def error_body(message: str, kind: str = "BadRequestError", param: str | None = None) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": 400}}).encode()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_busy_and_broken_servers_are_tried_again(status: int) -> None:
    assert isinstance(refusals.error_of(status, b"<html>", "call"), RetryLaterError)


def test_refused_key_names_its_variable() -> None:
    error = refusals.error_of(401, b"", "call", "ENGINE_KEY")
    assert isinstance(error, ConfigurationError)
    assert "$ENGINE_KEY" in str(error)


@pytest.mark.parametrize(
    "message",
    [
        "1 validation error:\n {'type': 'list_type', 'input': 'my secret prompt'}",
        "Unknown role in: my secret prompt",
        "temperature? my secret prompt",
    ],
)
def test_messages_that_may_quote_the_prompt_are_withheld(message: str) -> None:
    error = refusals.error_of(400, error_body(message, "Bad Request", "body.prompt"), "completion on r1")
    assert "secret" not in str(error)
    assert "body.prompt" in str(error)


def test_known_messages_are_passed_on() -> None:
    error = refusals.error_of(400, error_body("max_tokens must be at least 1, got 0."), "completion on r1")
    assert isinstance(error, RejectItemError)
    assert (error.reason, "max_tokens must be at least 1" in error.detail) == (Reason.ENGINE_REFUSED, True)


def test_too_long_prompts_have_their_own_reason() -> None:
    body = error_body("This model's maximum context length is 4096 tokens. However, your prompt contains 5000 tokens.")
    error = refusals.error_of(400, body, "completion on r1")
    assert isinstance(error, RejectItemError)
    assert error.reason == Reason.TOO_LONG


def test_missing_adapter_endpoint_means_updates_are_off() -> None:
    error = refusals.adapter_error(404, b'{"detail":"Not Found"}', "loading a")
    assert isinstance(error, RejectItemError)
    assert error.reason == Reason.ADAPTER_UPDATES_OFF
    other = refusals.adapter_error(404, error_body("Loading lora a failed: No adapter found for /x"), "loading a")
    assert isinstance(other, RejectItemError)
    assert other.reason == Reason.ENGINE_REFUSED


def test_rank_that_is_too_high_is_no_server_failure() -> None:
    body = error_body("Call to add_lora method failed: LoRA rank 16 is greater than max_lora_rank 8.", "Internal")
    assert isinstance(refusals.adapter_error(500, body, "loading a"), RejectItemError)
    assert isinstance(refusals.adapter_error(500, error_body("out of memory"), "loading a"), RetryLaterError)


def test_chat_body_carries_tools_and_arguments_in_their_order() -> None:
    tools = [{"type": "function", "function": {"name": n, "parameters": {"z": 1, "a": 2}}} for n in ("second", "first")]
    body = PromptBody(messages=[{"role": "user", "content": "hi"}], tools=tools, template_args={"b": 1, "a": 2})
    sent = wire.generation_json(GenerationRequest(body, "m", cache_salt="s"))
    fields = json.loads(sent)
    assert json.dumps(fields["tools"]) == json.dumps(tools)
    assert list(fields["chat_template_kwargs"]) == ["b", "a"]
    assert fields["cache_salt"] == "s"
    assert {name: fields[name] for name in ("messages", "tools", "chat_template_kwargs", "model")} == json.loads(
        wire.tokenize_json(body, "m")
    )


def test_no_salt_is_not_sent_at_all_and_an_empty_one_is() -> None:
    body = PromptBody(token_ids=[1])
    assert b"cache_salt" not in wire.generation_json(GenerationRequest(body, "m"))
    assert json.loads(wire.generation_json(GenerationRequest(body, "m", cache_salt="")))["cache_salt"] == ""


def test_opening_piece_of_a_chat_is_no_first_token() -> None:
    opening = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    assert wire.chunk_of(opening) is None
    token_without_text = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": None}]}
    assert wire.chunk_of(token_without_text) is not None
    ended_at_once = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]}
    assert wire.chunk_of(ended_at_once) is not None


def test_events_of_both_layouts_are_decoded() -> None:
    stored = {"type": "BlockStored", "block_hashes": [7, b"h"], "parent_block_hash": None, "token_ids": [1, 2]}
    maps = [stored, {"type": "BlockRemoved", "block_hashes": [7]}, {"type": "AllBlocksCleared"}, {"type": "New"}]
    arrays = [["BlockStored", [7, b"h"], None, [1, 2], 16], ["BlockRemoved", [7], "GPU"], ["AllBlocksCleared"]]
    expected = [
        KvEvent("stored", (7, b"h"), (1, 2)),
        KvEvent("removed", (7,)),
        KvEvent("cleared"),
    ]
    for events in (maps, arrays):
        assert kv_events.decode(msgspec.msgpack.encode([1.5, events, 0])) == expected


async def test_gap_in_the_events_is_told(tmp_path: Path) -> None:
    import zmq
    import zmq.asyncio

    endpoint = f"ipc://{tmp_path}/events"
    publisher = zmq.asyncio.Context.instance().socket(zmq.XPUB)
    publisher.bind(endpoint)
    stream = kv_events.subscribe(endpoint)
    try:
        reading = anext(stream)
        import asyncio

        first = asyncio.ensure_future(reading)
        await publisher.recv()  # the subscription has arrived
        payload = msgspec.msgpack.encode([1.0, [{"type": "AllBlocksCleared"}]])
        for sequence in (3, 4, 6):
            await publisher.send_multipart([b"", sequence.to_bytes(8, "big"), payload])
        kinds = [(await first).kind] + [(await anext(stream)).kind for _ in range(3)]
        assert kinds == ["cleared", "cleared", "lost", "cleared"]
    finally:
        await stream.aclose()
        publisher.close(linger=0)


def metrics(**changes: float) -> EngineMetrics:
    return replace(parse_metrics(PAGE), **({"running": 0.0, "waiting": 0.0} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"prefix_queries_tokens": 238.0, "prefix_hits_tokens": 96.0}, 64),
        ({"prefix_queries_tokens": 238.0}, 0),
        ({"prefix_queries_tokens": 338.0, "prefix_hits_tokens": 96.0}, None),  # somebody else's request is in it
        ({"prefix_queries_tokens": 238.0, "prefix_hits_tokens": 96.0, "running": 1.0}, None),
        ({"prefix_queries_tokens": 238.0, "prefix_hits_tokens": 96.0, "process_start_s": 1.0}, None),
        ({"prefix_queries_tokens": 100.0, "prefix_hits_tokens": 0.0}, None),
    ],
)
def test_counter_deltas_count_only_on_a_quiet_replica(after: dict[str, float], expected: int | None) -> None:
    assert cached_tokens_between(metrics(), metrics(**after), 100) == expected


def test_epoch_follows_process_start_and_generation_alone() -> None:
    epoch = epoch_of(metrics())
    assert epoch == epoch_of(metrics(prompt_tokens=9e9, kv_usage_share=1.0))
    assert len({epoch, epoch_of(metrics(), generation=1), epoch_of(metrics(process_start_s=1795991743.95))}) == 3
