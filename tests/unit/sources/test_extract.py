"""A log becomes partitions: every request once, every record accounted for, a second reading changes nothing."""

import gzip
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import Feedback
from warmup_tasks.lake import Lake
from warmup_tasks.lake.schemas import FEEDBACK, QUARANTINE, REQUESTS, from_table
from warmup_tasks.sources import ExtractionSummary, extract, reading
from warmup_tasks.sources.faults import Fault

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def row(number: int, **fields: Any) -> dict[str, Any]:
    time = (NOON + timedelta(seconds=number)).isoformat()
    return {"record": "request", "time": time, "request_id": f"r{number}", "prompt": f"question {number}", **fields}


def write(path: Path, *records: dict[str, Any] | bytes) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"\n".join(r if isinstance(r, bytes) else orjson.dumps(r) for r in records) + b"\n")
    return path


def stored(lake: Lake, day: str = "2026-11-26") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lake.read(f"requests/{day}", "requests").to_pylist()
    return rows


def is_balanced(summary: ExtractionSummary) -> bool:
    parts = (summary.requests_usable, summary.feedback_rows, summary.rows_quarantined, summary.duplicates)
    return summary.requests_read == sum(parts) + summary.not_a_request


def test_agent_text_gives_every_row(lake: Lake, data_dir: Path) -> None:
    summary = extract(lake, str(data_dir / "agent_text"), default_model="demo-chat")
    by_file = {read.file: (read.format, read.records) for read in summary.files}
    assert by_file["miniswe.jsonl.gz"] == ("agent-text", 402)
    assert by_file["magagent.jsonl.gz"] == ("agent-text", 746)
    assert by_file["LICENSE"] == (None, 0)
    assert (summary.requests_read, summary.requests_usable, summary.rows_quarantined) == (1148, 1148, 0)
    assert summary.usable_by_use == {"prefix": 1095, "embedding": 1095, "qa": 1095, "timing": 1148}  # 53 empty inputs
    assert summary.models == ["demo-chat"]
    with gzip.open(data_dir / "agent_text" / "miniswe.jsonl.gz") as file:
        logged = [orjson.loads(line) for line in file]
    bodies = {row["source_line"]: orjson.loads(row["body_json"]) for row in stored(lake, "2025-10-14")}
    assert bodies == {number: {"prompt": record["input"]} for number, record in enumerate(logged, start=1)}


def test_requests_land_on_their_utc_day_in_time_order(lake: Lake, tmp_path: Path) -> None:
    records = [row(3), row(1), row(2, time="2026-11-27T00:30:00+02:00"), row(4, time="2026-11-26T23:30:00-01:00")]
    summary = extract(lake, str(write(tmp_path / "log.jsonl", *records)))
    assert [f"{day}" for day in summary.days] == ["2026-11-26", "2026-11-27"]
    assert [r["request_id"] for r in stored(lake)] == ["r1", "r3", "r2"]
    assert [r["request_id"] for r in stored(lake, "2026-11-27")] == ["r4"]
    assert lake.read("requests/2026-11-26", "requests").schema.equals(REQUESTS)
    assert (summary.first_time, summary.last_time) == (
        NOON + timedelta(seconds=1),
        datetime(2026, 11, 27, 0, 30, tzinfo=UTC),
    )


def test_a_second_extraction_changes_nothing_and_says_the_same(lake: Lake, tmp_path: Path) -> None:
    feedback = {"record": "feedback", "time": 1795651200, "prompt_sha256": "ab", "confidence": 0.9}
    log = str(write(tmp_path / "log.jsonl", row(1), row(2), row(1), feedback, feedback, b"oops").parent / "log.jsonl")
    first = extract(lake, log)
    assert (first.requests_usable, first.duplicates, first.feedback_rows, first.rows_quarantined) == (2, 2, 1, 1)
    again = extract(lake, log)
    assert again.held() == first.held()
    assert (again.now.records, first.now.records) == (0, 6)
    assert extract(lake, log, is_incremental=False) == first
    assert is_balanced(first)


def test_overlapping_exports_and_copies_give_each_request_once(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "a/monday.jsonl", *(row(n) for n in range(10)))
    write(tmp_path / "a/tuesday.jsonl", *(row(n) for n in range(5, 15)))
    summary = extract(lake, str(tmp_path / "a"))
    assert (summary.requests_read, summary.requests_usable, summary.duplicates) == (20, 15, 5)
    shutil.copy(tmp_path / "a/monday.jsonl", tmp_path / "copy.jsonl")
    again = extract(lake, str(tmp_path / "copy.jsonl"))
    assert (again.requests_usable + again.duplicates, len(stored(lake))) == (10, 15)


def test_the_order_of_reading_changes_nothing(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", *(row(n, cached_tokens=n) for n in range(6)))
    two = write(tmp_path / "two.jsonl", *(row(n, prompt=None) for n in range(3, 9)))
    lakes = []
    for name, order in (("x", (one, two)), ("y", (two, one))):
        lakes.append(Lake(str(tmp_path / name)))
        for log in order:
            extract(lakes[-1], str(log))
    assert stored(lakes[0]) == stored(lakes[1])
    assert [r["source_file"] for r in stored(lakes[0])] == ["one.jsonl"] * 6 + ["two.jsonl"] * 3


def test_the_row_that_says_most_stays(lake: Lake, tmp_path: Path) -> None:
    poor, rich = row(1, prompt=None), row(1, cached_tokens=16, status=200)
    extract(lake, str(write(tmp_path / "a.jsonl", poor)))
    extract(lake, str(write(tmp_path / "b.jsonl", rich)))
    (kept,) = stored(lake)
    assert (kept["cached_tokens"], kept["body_json"]) == (16, '{"prompt":"question 1"}')


def test_without_request_ids_content_time_tenant_and_model_decide(lake: Lake, tmp_path: Path) -> None:
    bare = row(1)
    del bare["request_id"]
    others = [{**bare, "tenant": "t"}, {**bare, "model": "m"}, {**bare, "prompt": "else"}, {**bare, "time": 1795651300}]
    log = str(write(tmp_path / "log.jsonl", bare, bare, *others))
    summary = extract(lake, log, default_model="demo")
    assert (summary.requests_usable, summary.duplicates) == (5, 1)
    assert extract(lake, log, default_model="demo").held() == summary.held()
    extract(lake, log, default_model="other")
    assert len(stored(lake)) == 5
    assert sorted({r["model"] for r in stored(lake)}) == ["m", "other"]


def test_an_id_that_stands_over_other_prompts_or_tenants_loses_no_request(lake: Lake, tmp_path: Path) -> None:
    records = [
        row(1),
        row(2, request_id="r1"),
        row(3, request_id="r1", tenant="t"),
        row(4, request_id="r1", prompt=None),
    ]
    log = str(write(tmp_path / "log.jsonl", *records))
    summary = extract(lake, log)
    assert (summary.requests_usable, summary.duplicates) == (3, 1)  # the line without a prompt is the first one again
    ids = [r["request_id"] for r in stored(lake)]
    assert ids[0] == "r1"
    assert len(set(ids)) == 3
    assert extract(lake, log).held() == summary.held()


def test_two_tenants_with_one_question_are_two_requests(lake: Lake, tmp_path: Path) -> None:
    same = {"time": 1795651200, "prompt": "What is my account balance?", "record": "request"}
    extract(lake, str(write(tmp_path / "log.jsonl", {**same, "tenant": "a"}, {**same, "tenant": "b"})))
    assert sorted(r["tenant"] for r in stored(lake)) == ["a", "b"]


def test_bad_rows_are_quarantined_with_file_line_and_reason_and_without_content(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "log/a.jsonl", row(1), b"secret \0", row(2, tenant=""), row(3, time=None), row(4, prompt=7))
    (tmp_path / "log/b.jsonl.gz").write_bytes(gzip.compress(orjson.dumps(row(5)) + b"\n" * 3)[:-8])
    summary = extract(lake, str(tmp_path / "log"))
    (partition,) = lake.partitions("quarantine")
    table = lake.read(f"quarantine/{partition}", "quarantine")
    assert table.schema.equals(QUARANTINE)
    assert [(r["source_file"], r["source_line"], r["reason"]) for r in table.to_pylist()] == [
        ("a.jsonl", 2, Fault.NUL_BYTE),
        ("a.jsonl", 3, Fault.EMPTY_TENANT),
        ("a.jsonl", 4, Fault.NO_TIME),
        ("a.jsonl", 5, Fault.BAD_TYPE),
        ("b.jsonl.gz", 4, Fault.CUT_SHORT),
    ]
    assert "secret" not in str(table.to_pylist())
    assert "question" not in str(table.to_pylist())
    assert (summary.requests_usable, summary.rows_quarantined) == (2, 5)
    assert lake.meta(f"quarantine/{partition}") == {"log": str(tmp_path / "log")}


def test_a_log_that_was_repaired_empties_its_quarantine(lake: Lake, tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", row(1), b"broken")
    extract(lake, str(log))
    write(log, row(1), row(2))
    summary = extract(lake, str(log))
    assert summary.rows_quarantined == 0
    assert lake.read(f"quarantine/{lake.partitions('quarantine')[0]}", "quarantine").num_rows == 0
    assert len(stored(lake)) == 2


def test_formats_may_be_mixed_and_bystanders_are_listed(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "log/a.jsonl", row(1))
    write(tmp_path / "log/b.jsonl", {"time": 1795651200, "request": {"model": "m", "messages": [{"role": "user"}]}})
    write(tmp_path / "log/c.jsonl", {"timestamp": 1795651200, "input": "x", "output": "y", "session_id": "z"})
    write(tmp_path / "log/README.md", b"what this is")
    write(tmp_path / "log/d.json", b"{}", b"not ours")
    summary = extract(lake, str(tmp_path / "log"))
    formats = {read.file: read.format for read in summary.files}
    assert formats == {
        "README.md": None,
        "a.jsonl": "normalised",
        "b.jsonl": "openai",
        "c.jsonl": "agent-text",
        "d.json": None,
    }
    assert summary.quarantined_by_reason == {Fault.NOT_RECOGNISED: 2}
    assert summary.requests_usable == 3
    assert is_balanced(summary)


def test_nothing_known_or_an_unknown_name_is_said_with_what_to_write_instead(lake: Lake, tmp_path: Path) -> None:
    log = str(write(tmp_path / "log.jsonl", b"hello", b"world"))
    with pytest.raises(ConfigurationError, match=r"log\.jsonl.*normalised"):
        extract(lake, log)
    with pytest.raises(ConfigurationError, match="'openapi' is not known; use one of auto, normalised"):
        extract(lake, log, "openapi")
    assert extract(lake, log, "openai").rows_quarantined == 2


def test_uses_are_counted_by_what_a_row_can_serve(lake: Lake, tmp_path: Path) -> None:
    records = [
        row(1, answer_text="yes", status=200),
        row(2, answer_text="no", status=500),
        row(3, prompt=None, input_tokens=9),
        row(4, is_truncated=True),
        row(5, request_type="embedding"),
    ]
    summary = extract(lake, str(write(tmp_path / "log.jsonl", *records)))
    assert summary.usable_by_use == {"prefix": 1, "embedding": 3, "qa": 1, "timing": 5}


def test_block_hashes_above_2_to_the_63_are_exact(lake: Lake, tmp_path: Path) -> None:
    hashes = [2**64 - 1, 2**63, 2**63 - 1, 0]
    extract(lake, str(write(tmp_path / "log.jsonl", row(1, prompt=None, block_hashes=hashes, block_tokens=512))))
    assert stored(lake)[0]["block_hashes"] == hashes


def test_feedback_lands_on_its_day_as_records(lake: Lake, tmp_path: Path) -> None:
    feedback = {"record": "feedback", "time": 1795651200, "tenant": "t", "prompt": "q", "confidence": 0.5,
                "correction": "better", "adopted_count": 3}  # fmt: skip
    summary = extract(lake, str(write(tmp_path / "log.jsonl", feedback)))
    table = lake.read("feedback/2026-11-26", "feedback")
    assert table.schema.equals(FEEDBACK)
    (kept,) = from_table(table, Feedback)
    assert (kept.tenant, kept.confidence, kept.correction, kept.adopted_count) == ("t", 0.5, "better", 3)
    assert (summary.requests_usable, summary.feedback_rows, summary.requests_read) == (0, 1, 1)


def test_two_extractions_at_once_lose_nothing(lake: Lake, tmp_path: Path) -> None:
    logs = [write(tmp_path / f"{n}.jsonl", *(row(100 * n + k) for k in range(20))) for n in range(4)]
    barrier = threading.Barrier(len(logs))

    def run(log: Path) -> None:
        barrier.wait()
        extract(Lake(lake.uri), str(log))

    threads = [threading.Thread(target=run, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stored(lake)) == 80


def test_chunks_leave_memory_and_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = str(write(tmp_path / "log.jsonl", *(row(n, time=1795651200 + 9_000 * (n % 20)) for n in range(100))))
    whole, pieces = Lake(str(tmp_path / "whole")), Lake(str(tmp_path / "pieces"))
    expected = extract(whole, log)
    monkeypatch.setattr("warmup_tasks.sources.staging.CHUNK_BYTES", 7)
    monkeypatch.setattr("warmup_tasks.sources.staging._MOST_OPEN", 2)
    monkeypatch.setattr("warmup_tasks.sources.blocks.BLOCK_BYTES", 900)
    assert extract(pieces, log) == expected
    assert [stored(whole, f"{day}") for day in expected.days] == [stored(pieces, f"{day}") for day in expected.days]


def test_progress_ends_at_the_whole(lake: Lake, tmp_path: Path) -> None:
    write(tmp_path / "log/a.jsonl", row(1))
    write(tmp_path / "log/b.jsonl", row(2))
    told: list[tuple[int, int]] = []
    extract(lake, str(tmp_path / "log"), progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
    assert told == sorted(told)


def test_an_address_is_shown_without_login() -> None:
    assert reading.shown("postgresql://u:p%40@h:5432/db") == "postgresql://h:5432/db"
    assert reading.shown("/logs/a@b") == "/logs/a@b"
