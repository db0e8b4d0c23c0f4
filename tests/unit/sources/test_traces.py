"""Research traces: every row once, hashes exact, clocks on one UTC time line, and the counts that the data is known by.

Forms without a real file here (Qwen-Bailian) are written after the trace's own description in
github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

import gzip
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract
from warmup_tasks.sources.base import NotARequest, Request
from warmup_tasks.sources.coding_sessions import CodingSessionsSource
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.hash_prompts import HashPrompts
from warmup_tasks.sources.options import DEFAULT_EPOCH, ReadOptions

EPOCH = datetime(2026, 11, 26, 1, tzinfo=UTC)
MOONCAKE = {"timestamp": 27_482, "input_length": 600, "output_length": 5, "hash_ids": [46, 2**64 - 1]}
BAILIAN = {
    "chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132,
    "type": "text", "turn": 1, "hash_ids": [2**63, 1090, 18446744073709551615],
}  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def write(path: Path, *records: Any) -> str:
    path.write_bytes(b"".join(r if isinstance(r, bytes) else orjson.dumps(r) + b"\n" for r in records))
    return str(path)


def rows(lake: Lake) -> list[dict[str, Any]]:
    return [row for day in lake.partitions("requests") for row in lake.read(f"requests/{day}", "requests").to_pylist()]


def is_balanced(summary: ExtractionSummary) -> bool:
    parts = (summary.requests_usable, summary.feedback_rows, summary.rows_quarantined, summary.duplicates)
    return summary.requests_read == sum(parts) + summary.not_a_request


def test_mooncake_gives_every_request_and_block(lake: Lake, data_dir: Path) -> None:
    summary = extract(lake, str(data_dir / "mooncake"), options=ReadOptions(epoch=EPOCH))
    stored = rows(lake)
    assert (summary.requests_read, summary.requests_usable, summary.duplicates) == (12_031, 12_031, 0)
    assert is_balanced(summary)
    assert summary.usable_by_use["prefix"] == 0
    assert summary.last_time is not None
    assert (summary.first_time, (summary.last_time - EPOCH).total_seconds() // 1) == (EPOCH, 3_536)
    assert sum(len(row["block_hashes"]) for row in stored) == 288_500
    assert len({value for row in stored for value in row["block_hashes"]}) == 182_790
    assert all(row["block_hashes"][0] == 0 for row in stored)
    assert {row["block_tokens"] for row in stored} == {512}
    assert round(sum(row["input_tokens"] for row in stored) / 12_031) == 12_035
    (trace,) = [read for read in summary.files if read.format]
    assert trace.format == "mooncake"
    assert "--tokens-per-block" in trace.notes[0]


def test_mooncake_drives_an_engine_with_the_reuse_that_the_trace_has(lake: Lake, data_dir: Path) -> None:
    rule = HashPrompts(tokens_per_block=4, vocabulary_size=32_000, max_tokens=512)
    summary = extract(lake, str(data_dir / "mooncake"), options=ReadOptions(hash_prompts=rule))
    stored = rows(lake)
    prompts = {row["request_id"]: orjson.loads(row["body_json"])["token_ids"] for row in stored if row["body_json"]}
    too_long = 12_031 - len(prompts)
    assert summary.prompts_too_long == too_long == sum(row["input_tokens"] > 128 * 512 for row in stored)
    assert summary.usable_by_use == {"prefix": len(prompts), "embedding": len(prompts), "qa": 0, "timing": 12_031}
    by_hash, by_tokens = PrefixHits(), PrefixHits()
    for row in stored:
        if row["request_id"] in prompts:
            ids = prompts[row["request_id"]]
            whole = len(ids) // 4
            assert whole == row["input_tokens"] // 512
            by_hash.ask([(value,) for value in row["block_hashes"][:whole]])
            by_tokens.ask([tuple(ids[i : i + 4]) for i in range(0, 4 * whole, 4)])
    assert by_hash.hits == by_tokens.hits > 90_000


def test_a_trace_read_again_by_another_rule_has_the_prompts_of_that_rule_alone(lake: Lake, tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", MOONCAKE, {**MOONCAKE, "timestamp": 27_483})
    for rule, tokens in ((None, None), (HashPrompts(4, 32_000), 4), (HashPrompts(8, 32_000), 8), (None, None)):
        summary = extract(lake, trace, options=ReadOptions(hash_prompts=rule))
        stored = rows(lake)
        assert (summary.requests_usable, summary.duplicates, len(stored)) == (2, 0, 2)
        assert summary.usable_by_use["embedding"] == (2 if rule else 0)
        for row in stored:
            length = len(orjson.loads(row["body_json"])["token_ids"]) if row["body_json"] else None
            expected = None if tokens is None else tokens * row["input_tokens"] // 512
            assert (length is None) == (expected is None)
            assert length is None or expected is None or abs(length - expected) <= tokens


class PrefixHits:
    """A prefix cache without limit: counts leading blocks that were asked for before."""

    def __init__(self) -> None:
        self.hits = 0
        self.known: dict[Any, Any] = {}

    def ask(self, blocks: list[Any]) -> None:
        node, is_hit = self.known, True
        for block in blocks:
            is_hit = is_hit and block in node
            self.hits += is_hit
            node = node.setdefault(block, {})


def test_equal_rows_of_a_trace_are_so_many_requests_and_a_copy_brings_none(lake: Lake, tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", MOONCAKE, MOONCAKE, {**MOONCAKE, "timestamp": 27_483}, MOONCAKE)
    # the fourth row comes out of order: its time was left behind, so it counts as the first row read again
    assert (extract(lake, trace).requests_usable, len(rows(lake))) == (3, 3)
    shutil.copy(trace, tmp_path / "copy.jsonl")
    again = extract(lake, str(tmp_path / "copy.jsonl"))
    assert len(rows(lake)) == 3
    assert is_balanced(again)


def test_hashes_are_exact_and_relative_clocks_take_the_epoch(lake: Lake, tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", MOONCAKE)
    extract(lake, trace)
    assert rows(lake)[0]["block_hashes"] == [46, 2**64 - 1]
    assert rows(lake)[0]["time"] == DEFAULT_EPOCH + timedelta(milliseconds=27_482)
    other = Lake(lake.uri + "-2")
    extract(other, trace, options=ReadOptions(epoch=datetime.fromisoformat("2026-11-26T02:00:00+01:00")))
    assert rows(other)[0]["time"] == EPOCH + timedelta(milliseconds=27_482)
    with pytest.raises(ConfigurationError, match="epoch: needs a time zone"):
        ReadOptions(epoch=datetime(2026, 11, 26))  # noqa: DTZ001


def test_a_trace_with_absolute_times_needs_no_epoch(lake: Lake, tmp_path: Path) -> None:
    extract(lake, write(tmp_path / "trace.jsonl", {**MOONCAKE, "timestamp": 1_795_658_400_123}))
    assert rows(lake)[0]["time"] == datetime(2026, 11, 26, 2, 0, 0, 123_000, tzinfo=UTC)


def test_bailian_joins_chats_into_sessions(lake: Lake, tmp_path: Path) -> None:
    follow_up = {**BAILIAN, "chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "turn": 2}
    third = {**BAILIAN, "chat_id": 170, "parent_chat_id": 160, "timestamp": 70, "turn": 3}
    orphan = {**BAILIAN, "chat_id": 171, "parent_chat_id": 99, "timestamp": 71}
    summary = extract(lake, write(tmp_path / "qwen_traceA_blksz_16.jsonl", BAILIAN, follow_up, third, orphan))
    stored = rows(lake)
    assert [read.format for read in summary.files] == ["qwen-bailian"]
    assert [row["session_id"] for row in stored] == ["159", "159", "159", "99"]
    assert stored[0]["block_hashes"] == BAILIAN["hash_ids"]
    assert [row["time"] - DEFAULT_EPOCH for row in stored[:2]] == [timedelta(seconds=61.114), timedelta(seconds=62.5)]
    assert {(row["request_type"], row["block_tokens"], row["output_tokens"]) for row in stored} == {("chat", 16, 132)}
    extract(Lake(lake.uri + "-2"), write(tmp_path / "trace_blksz_64.jsonl", BAILIAN))
    assert rows(Lake(lake.uri + "-2"))[0]["block_tokens"] == 64


def test_two_bailian_traces_with_the_same_chat_ids_are_different_requests(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write(tmp_path / "log/a.jsonl", BAILIAN)
    write(tmp_path / "log/b.jsonl", {**BAILIAN, "input_length": 41})
    assert extract(lake, str(tmp_path / "log")).requests_usable == 2


def test_coding_sessions_give_every_row_and_the_requests_within_subagents(data_dir: Path, lake: Lake) -> None:
    summary = extract(lake, str(data_dir / "coding_sessions"))
    assert is_balanced(summary)
    assert (summary.requests_read, summary.requests_usable, summary.not_a_request) == (23_529 + 330, 23_502 + 330, 27)
    assert summary.rows_quarantined == summary.duplicates == 0
    read, ranges = 0, Counter[str]()
    with gzip.open(data_dir / "coding_sessions" / "sessions.jsonl.gz") as lines:
        for line in lines:
            session = orjson.loads(line)
            for row in session["requests"]:
                for request in row["requests"] if row["type"] == "subagent" else [row]:
                    ranges[session["id"]] += sum(high - low + 1 for low, high in request["hash_ranges"])
                    read += 1
    stored: Counter[str] = Counter()
    owners: dict[int, set[str]] = {}
    for day in summary.days:
        table = lake.read(f"requests/{day}", "requests")
        for session_id, hashes in zip(table["session_id"].to_pylist(), table["block_hashes"], strict=True):
            name = session_id.split("/")[0]
            values = hashes.values.to_numpy()
            stored[name] += len(values)
            if len(values):
                owners.setdefault(int(values[0]) >> 24, set()).add(name)
    assert read == 23_832
    assert stored == ranges
    assert sum(stored.values()) == 46_960_228
    assert all(len(names) == 1 for names in owners.values())  # no two sessions share the 40 bits before their own ids


def session(*requests: Any, **changes: Any) -> dict[str, Any]:
    return {"id": "s1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": requests, **changes}


ROW = {
    "t": 13.5, "type": "s", "model": "m", "in": 200, "out": 96, "api_time": 3.09, "ttft": 1.75,
    "hash_ranges": [[1, 2], [9, 9]],
}  # fmt: skip


def test_a_coding_session_is_taken_apart(lake: Lake, tmp_path: Path) -> None:
    agent = {"t": 100.0, "type": "subagent", "agent_id": "agent_001", "requests": [{**ROW, "t": 6.0}]}
    summary = extract(lake, write(tmp_path / "sessions.jsonl", session(ROW, agent, ROW), session(ROW, id="s2")))
    stored = rows(lake)
    assert (summary.requests_usable, summary.not_a_request) == (4, 1)
    assert {row["request_id"] for row in stored} == {"s1/0", "s1/1.0", "s1/2", "s2/0"}
    by_id = {row["request_id"]: row for row in stored}
    assert by_id["s1/1.0"]["time"] == DEFAULT_EPOCH + timedelta(seconds=106)
    assert by_id["s1/1.0"]["session_id"] == "s1/agent_001"
    first = by_id["s1/0"]
    assert (first["time"], first["session_id"]) == (DEFAULT_EPOCH + timedelta(seconds=13.5), "s1")
    assert (first["input_tokens"], first["output_tokens"], first["ttft_ms"], first["latency_ms"]) == (
        200,
        96,
        1750,
        3090,
    )
    assert [value & 0xFFFFFF for value in first["block_hashes"]] == [1, 2, 9]
    assert not set(first["block_hashes"]) & set(by_id["s2/0"]["block_hashes"])
    assert first["block_hashes"] == by_id["s1/2"]["block_hashes"]


def test_a_session_that_went_on_brings_its_new_requests_only(lake: Lake, tmp_path: Path) -> None:
    later = {**ROW, "t": 20.0}
    extract(lake, write(tmp_path / "a.jsonl", session(ROW)))
    again = extract(lake, write(tmp_path / "b.jsonl", session(ROW, later)))
    assert (again.requests_read, again.requests_usable, again.duplicates) == (2, 1, 1)
    assert is_balanced(again)
    assert len(rows(lake)) == 2


@pytest.mark.parametrize(
    ("ranges", "fault"),
    [
        (None, Fault.BAD_TYPE),
        ([[1]], Fault.BAD_TYPE),
        ([["1", 2]], Fault.BAD_TYPE),
        ([[2, 1]], Fault.BAD_VALUE),
        ([[-1, 1]], Fault.BAD_VALUE),
        ([[0, 2**24]], Fault.BAD_VALUE),
        ([[0, 2**21]], Fault.BAD_VALUE),
    ],
)
def test_ranges_that_are_none_are_faults(ranges: Any, fault: Fault) -> None:
    record = {**ROW, "hash_ranges": ranges, "x_session": {"id": "s", "block_size": 64}}
    with pytest.raises(BadRecordError) as caught:
        CodingSessionsSource().read_record(record)
    assert caught.value.fault is fault


def test_bad_rows_of_a_session_are_quarantined_one_by_one(lake: Lake, tmp_path: Path) -> None:
    log = write(tmp_path / "sessions.jsonl", session(ROW, "no row", {**ROW, "t": "soon"}, ROW), session(requests=5))
    summary = extract(lake, log)
    assert (summary.requests_read, summary.requests_usable, summary.rows_quarantined) == (5, 2, 3)
    assert is_balanced(summary)


def test_azure_gives_every_row_and_says_that_nothing_is_warmed(lake: Lake, data_dir: Path) -> None:
    summary = extract(lake, str(data_dir / "azure_llm_2023"))
    by_file = {read.file: read for read in summary.files if read.format}
    assert {name: (read.format, read.records) for name, read in by_file.items()} == {
        "AzureLLMInferenceTrace_code.csv": ("azure-llm", 8_819),
        "AzureLLMInferenceTrace_conv.csv": ("azure-llm", 19_366),
    }
    assert (summary.requests_usable, summary.rows_quarantined, summary.duplicates) == (28_185, 0, 0)
    assert summary.usable_by_use == {"prefix": 0, "embedding": 0, "qa": 0, "timing": 28_185}
    assert all("nothing is warmed from it" in read.notes[0] for read in by_file.values())
    assert summary.first_time == datetime(2023, 11, 16, 18, 15, 46, 680_590, tzinfo=UTC)
    first = rows(lake)[0]
    assert (first["input_tokens"], first["output_tokens"], first["prompt_sha256"]) == (374, 44, None)


def test_azure_rows_of_another_form_are_quarantined(lake: Lake, tmp_path: Path) -> None:
    log = write(
        tmp_path / "trace.csv",
        b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
        b"2024-05-10 00:00:00.009930+00:00,2162,5\r\n",
        b"2024-05-10 00:00:01,many,5\r\n",
        b"2024-05-10 00:00:02,1\r\n",
        b"\xff\xfe\n",
        b"2024-05-10 00:00:0\0\n",
        b"2024-05-10 00:00:03,7",
    )
    summary = extract(lake, log)
    assert summary.quarantined_by_reason == {
        Fault.BAD_TYPE: 1, Fault.BAD_VALUE: 1, Fault.NOT_UTF8: 1, Fault.NUL_BYTE: 1, Fault.TRUNCATED_LINE: 1,
    }  # fmt: skip
    assert summary.requests_usable == 1
    assert is_balanced(summary)


def test_subagent_rows_without_requests_are_no_requests() -> None:
    record = {"type": "subagent", "x_session": {"id": "s", "block_size": 64}}
    assert isinstance(CodingSessionsSource().read_record(record), NotARequest)
    assert isinstance(CodingSessionsSource().read_record({**ROW, "x_session": {"id": "s", "block_size": 64}}), Request)
