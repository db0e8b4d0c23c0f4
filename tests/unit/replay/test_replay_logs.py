"""Logged requests become accesses: hashes exactly, prompts by their blocks, nothing shared across models or salts."""

from datetime import UTC, datetime, timedelta

import numpy as np
import orjson
import pyarrow as pa
import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake import Lake
from warmup_tasks.lake.schemas import REQUESTS
from warmup_tasks.replay.account import replay_account
from warmup_tasks.replay.logs import Basis, read_accesses

BEGAN = datetime(2026, 11, 26, 23, 59, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path):
    return Lake(str(tmp_path / "lake"))


def publish(lake, rows, began=BEGAN):
    """One row a second from a minute before midnight on, over two day partitions."""
    full = []
    for index, row in enumerate(rows):
        time = row.pop("time", began + timedelta(seconds=index))
        full.append({"request_id": f"r{-index}", "source_file": "f", "source_line": index, "time": time, **row})
    for day in sorted({row["time"].date() for row in full}):
        own = [row for row in full if row["time"].date() == day]
        lake.publish("requests", f"{day}", {"requests": pa.Table.from_pylist(own, REQUESTS)})


def said(text, **body):
    return orjson.dumps({"messages": [{"role": "user", "content": text}], **body}).decode()


def test_hashes_are_exact_and_requests_stand_in_the_logs_order(lake):
    top = 2**64 - 1
    rows = [{"block_hashes": [top, top - 1], "block_tokens": 512}, {"block_hashes": [top, 5], "block_tokens": 512}]
    publish(lake, [{**row, "time": BEGAN, "input_tokens": 700} for row in rows])
    logged = read_accesses(lake)
    assert logged.basis is Basis.BLOCK_HASHES
    assert logged.accesses.names.tolist() == [top, top - 1, 5]
    assert logged.accesses.ids.tolist() == [0, 1, 0, 2]
    assert (logged.accesses.block_tokens, logged.accesses.prompt_tokens.tolist()) == (512, [700, 700])


@pytest.mark.parametrize("column", ["model", "adapter", "cache_salt"])
def test_blocks_are_shared_only_within_model_adapter_and_salt(lake, column):
    publish(lake, [{"block_hashes": [3, 4], column: value} for value in ("a", "b", "a", None)])
    accesses = read_accesses(lake).accesses
    assert accesses.ids.tolist() == [0, 1, 2, 3, 0, 1, 4, 5]
    assert accesses.names.tolist() == [3, 4, 3, 4, 3, 4]


def test_prompts_share_what_their_texts_share(lake):
    system = "You answer questions about the tariff of 2026. " * 20
    publish(lake, [{"body_json": said(system + tail)} for tail in ("a" * 300, "b" * 300, "a" * 300)])
    logged = read_accesses(lake, block_tokens=16)
    assert logged.basis is Basis.PROMPTS
    first, second, third = (logged.accesses.request(index).tolist() for index in range(3))
    assert first == third
    shared = sum(a == b for a, b in zip(first, second, strict=True))
    assert shared == (len(system) + len('{"role":"user","content":"')) // 64
    assert not set(first[shared:]) & set(second[shared:])


def test_tools_stand_before_the_conversation(lake):
    tools = [{"type": "function", "function": {"name": "look_up", "description": "x" * 400}}]
    publish(lake, [{"body_json": said("hello", tools=tools)}, {"body_json": said("bye", tools=tools)}])
    one, two = (read_accesses(lake).accesses.request(index) for index in range(2))
    assert one[0] == two[0]


def test_token_ids_are_cut_as_the_engine_cuts_them(lake):
    rows = [list(range(33)), list(range(32)), [*range(16), 99, *range(17, 49)]]
    publish(lake, [{"body_json": orjson.dumps({"token_ids": row}).decode(), "input_tokens": len(row)} for row in rows])
    accesses = read_accesses(lake, block_tokens=16).accesses
    assert [accesses.request(index).tolist() for index in range(3)] == [[0, 1], [0], [0, 2, 3]]


def test_what_has_no_blocks_is_left_out_and_counted(lake):
    publish(
        lake,
        [
            {"block_hashes": [1, 2], "block_tokens": 64},
            {"block_hashes": [1], "block_tokens": 64},
            {"block_hashes": [1], "block_tokens": 16},
            {"block_hashes": [], "block_tokens": 64},
            {"body_json": said("x" * 500)},
            {"block_hashes": [9], "block_tokens": 64, "request_type": "embedding"},
            {"block_hashes": [9], "block_tokens": 64, "is_truncated": True},
            {},
        ],
    )
    logged = read_accesses(lake)
    assert logged.accesses.ids.tolist() == [0, 1, 0]
    assert logged.accesses.block_tokens == 64
    assert logged.requests_left_out == 5


def test_the_window_is_half_open_over_midnight(lake):
    publish(lake, [{"block_hashes": [index]} for index in range(120)])
    since, until = BEGAN + timedelta(seconds=59), BEGAN + timedelta(seconds=62)
    assert read_accesses(lake, since=since, until=until).accesses.names.tolist() == [59, 60, 61]


def test_a_log_without_blocks_says_so(lake):
    with pytest.raises(ConfigurationError, match="block hashes or a prompt"):
        read_accesses(lake)
    publish(lake, [{"input_tokens": 5}])
    with pytest.raises(ConfigurationError, match="block hashes or a prompt"):
        read_accesses(lake)


def test_the_account_of_the_real_log(lake, conversation_trace):
    began = datetime(2026, 11, 27, tzinfo=UTC)
    rows = [
        {
            "time": began + timedelta(milliseconds=row["timestamp"]),
            "block_hashes": row["hash_ids"],
            "block_tokens": 512,
            "input_tokens": row["input_length"],
        }
        for row in conversation_trace
    ]
    publish(lake, rows)
    account = replay_account(lake, [1_000, 10_000], replicas=2)
    assert {size: round(ratio, 4) for size, ratio in account["hit_ratio"].items()} == {"1000": 0.0445, "10000": 0.2112}
    assert round(account["hit_ratio_endless"], 4) == 0.3664
    assert (account["requests"], account["asked_blocks"], account["distinct_blocks"]) == (12_031, 288_500, 182_790)
    assert account["latency"] is None
    routers = account["routers"]
    assert routers["prefix_affinity"]["10000"]["hit_ratio"] > routers["round_robin"]["10000"]["hit_ratio"]
    orjson.dumps(account)


def test_the_account_brings_the_logs_own_latency_line(lake):
    random = np.random.default_rng(1)
    rows = []
    for index in range(60):
        tokens = int(random.integers(100, 2_000))
        cached = tokens // 3 // 16 * 16
        rows.append(
            {
                "block_hashes": [index % 3, 100 + index],
                "block_tokens": 16,
                "input_tokens": tokens,
                "cached_tokens": cached,
                "ttft_ms": 30 + 0.2 * (tokens - cached),
            }
        )
    publish(lake, rows)
    account = replay_account(lake, [10], replicas=2)
    assert account["latency"]["base_ms"] == pytest.approx(30, abs=0.5)
    assert account["latency"]["ms_per_token"] == pytest.approx(0.2, rel=0.01)
    assert set(account["routers"]["round_robin"]["10"]) == {"hit_ratio", "ttft_p95_ms", "load_share"}


def test_a_capacity_below_zero_is_refused(lake):
    with pytest.raises(ConfigurationError, match="such as 1000,10000"):
        replay_account(lake, [-1])
