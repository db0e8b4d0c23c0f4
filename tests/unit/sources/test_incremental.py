"""A log that grows is read on from where the last reading ended; the outcome is that of one reading."""

import gzip
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup_tasks.errors import RetryLaterError
from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract
from warmup_tasks.sources.base import Batch
from warmup_tasks.sources.blocks import LineBlock
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.normalised import NormalisedSource
from warmup_tasks.sources.pool import Pool
from warmup_tasks.sources.reader import Job, Task

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
YESTERDAY = NOON - timedelta(days=1)


def line(number: int, **fields: Any) -> bytes:
    when = fields.pop("when", NOON) + timedelta(seconds=number)
    record = {"record": "request", "time": when.isoformat(), "request_id": f"r{number}", "prompt": f"question {number}"}
    return orjson.dumps({**record, **fields}) + b"\n"


def feedback(number: int) -> bytes:
    return orjson.dumps(
        {"record": "feedback", "time": NOON.isoformat(), "prompt_sha256": f"{number}", "confidence": 0.5}
    ) + b"\n"  # fmt: skip


def append(path: Path, *lines: bytes) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    with path.open("ab") as file:
        file.write(b"".join(lines))


def rows(lake: Lake, *, has_place: bool = True) -> list[dict[str, Any]]:
    found = [row for day in lake.partitions("requests") for row in lake.read(f"requests/{day}", "requests").to_pylist()]
    return found if has_place else [{**row, "source_file": "", "source_line": 0} for row in found]


def quarantined(lake: Lake) -> list[tuple[str, int, str]]:
    (place,) = lake.partitions("quarantine")
    table = lake.read(f"quarantine/{place}", "quarantine").to_pylist()
    return [(row["source_file"], row["source_line"], row["reason"]) for row in table]


def content(summary: ExtractionSummary) -> dict[str, Any]:
    """What does not depend on how often the log was read: the ground on which a format was chosen is the first one."""
    files = [file.model_copy(update={"ground": "", "records_now": 0}) for file in summary.files]
    return summary.held().model_copy(update={"files": files, "refs": []}).model_dump()


def is_balanced(summary: ExtractionSummary) -> bool:
    whole = (summary.requests_usable, summary.feedback_rows, summary.rows_quarantined, summary.duplicates)
    now = summary.now
    parts = (now.requests_usable, now.feedback_rows, now.rows_quarantined, now.duplicates, now.not_a_request)
    return summary.requests_read == sum(whole) + summary.not_a_request and now.records == sum(parts)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log" / "app.jsonl"


def fresh(log: str | Path, tmp_path: Path, **options: Any) -> tuple[ExtractionSummary, Lake]:
    """What one reading of all gives."""
    lake = Lake(tempfile.mkdtemp(dir=tmp_path))
    return extract(lake, str(log), **options), lake


def test_a_log_that_grew_is_read_on_and_old_days_stay_as_they_are(lake: Lake, log: Path, tmp_path: Path) -> None:
    append(log, line(1, when=YESTERDAY), line(2), line(2), b"rubbish\n", feedback(1))
    first = extract(lake, str(log))
    assert (first.now.records, first.requests_read, first.duplicates) == (5, 5, 1)
    append(log, line(3), line(1, when=YESTERDAY), b"\n", b"[]\n", feedback(1), feedback(2))
    second = extract(lake, str(log))
    assert (second.now.records, second.now.requests_usable, second.now.feedback_rows) == (5, 1, 1)
    assert (second.now.duplicates, second.now.rows_quarantined) == (2, 1)
    assert (second.requests_read, second.requests_usable, second.duplicates, second.feedback_rows) == (10, 3, 3, 2)
    once, other = fresh(log, tmp_path)
    assert content(second) == content(once)
    assert rows(lake) == rows(other)
    assert (
        quarantined(lake)
        == quarantined(other)
        == [("app.jsonl", 4, Fault.NOT_JSON), ("app.jsonl", 9, Fault.NOT_AN_OBJECT)]
    )
    assert lake.latest("requests", "2026-11-25") == "requests/2026-11-25@000001"
    assert lake.latest("requests", "2026-11-26") == "requests/2026-11-26@000002"
    assert is_balanced(first)
    assert is_balanced(second)


def test_late_rows_join_their_day(lake: Lake, log: Path) -> None:
    append(log, line(1, when=YESTERDAY), line(2))
    extract(lake, str(log))
    append(log, line(3, when=YESTERDAY))
    summary = extract(lake, str(log))
    assert (summary.now.records, [f"{day}" for day in summary.days]) == (1, ["2026-11-25", "2026-11-26"])
    assert summary.refs == ["requests/2026-11-25@000002", "requests/2026-11-26@000001"]
    assert [row["request_id"] for row in rows(lake)] == ["r1", "r3", "r2"]


def test_nothing_is_read_where_nothing_came(lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, line(1), b"rubbish\n")
    append(log.with_name("old.jsonl.gz"), gzip.compress(line(2)))
    append(log.with_name("doc.json"), orjson.dumps([orjson.loads(line(3))]))
    first = extract(lake, str(log.parent))
    assert (first.requests_usable, first.rows_quarantined) == (2, 2)  # a document is no log of this format
    monkeypatch.setattr("warmup_tasks.sources.reader.Reader.read_block", None)
    monkeypatch.setattr("warmup_tasks.sources.reader.Reader.read_records", None)
    again = extract(lake, str(log.parent))
    assert again.held() == first.held()
    assert (again.now.records, {file.records_now for file in again.files}) == (0, {0})


def test_a_last_line_that_is_still_being_written_counts_when_it_is_whole(lake: Lake, log: Path, tmp_path: Path) -> None:
    append(log, line(1), line(2)[:20])
    first = extract(lake, str(log))
    assert (first.requests_read, first.quarantined_by_reason) == (2, {Fault.TRUNCATED_LINE: 1})
    assert quarantined(lake) == [("app.jsonl", 2, Fault.TRUNCATED_LINE)]
    append(log, line(2)[20:-1])
    second = extract(lake, str(log))
    assert (second.requests_read, second.requests_usable, second.now.records) == (2, 2, 1)
    assert quarantined(lake) == []
    append(log, b"\n", line(3))
    third = extract(lake, str(log))
    assert (third.requests_read, third.requests_usable, third.duplicates, third.now.records) == (3, 3, 0, 2)
    once, other = fresh(log, tmp_path)
    assert third.requests_usable == once.requests_usable
    assert rows(lake) == rows(other)
    assert all(map(is_balanced, (first, second, third)))


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_rotated_file_is_known_by_its_beginning(lake: Lake, log: Path, tmp_path: Path, is_packed: bool) -> None:
    append(log, line(1), line(2), b"rubbish\n")
    extract(lake, f"{log}*")
    append(log, line(3))
    rotated = log.with_name("app.jsonl.1")
    log.rename(rotated)
    if is_packed:
        rotated.with_name("app.jsonl.1.gz").write_bytes(gzip.compress(rotated.read_bytes()))
        rotated.unlink()
    append(log, line(4), b"bad\n")
    summary = extract(lake, f"{log}*")
    assert (summary.now.records, summary.requests_usable, summary.duplicates) == (3, 4, 0)
    name = "app.jsonl.1.gz" if is_packed else "app.jsonl.1"
    assert {file.file: (file.records, file.records_now) for file in summary.files} == {
        "app.jsonl": (2, 2),
        name: (4, 1),
    }
    assert quarantined(lake) == [("app.jsonl", 2, Fault.NOT_JSON), (name, 3, Fault.NOT_JSON)]
    once, other = fresh(f"{log}*", tmp_path)
    assert content(summary) == content(once)
    assert rows(lake, has_place=False) == rows(other, has_place=False)
    assert extract(lake, f"{log}*").held() == summary.held()


def test_a_file_that_was_written_anew_is_read_anew_and_its_old_requests_stay(lake: Lake, log: Path) -> None:
    append(log, line(1), line(2), b"rubbish\n")
    extract(lake, str(log))
    log.write_bytes(line(7) + line(8) + line(9))
    summary = extract(lake, str(log))
    assert (summary.requests_read, summary.now.records, summary.requests_usable) == (3, 3, 3)
    assert quarantined(lake) == []
    assert [row["request_id"] for row in rows(lake)] == ["r1", "r2", "r7", "r8", "r9"]


def test_a_file_with_the_same_beginning_and_another_middle_is_read_anew(lake: Lake, log: Path) -> None:
    append(log, *(line(number) for number in range(200)))
    extract(lake, str(log))
    log.write_bytes(b"".join(line(number if number < 100 else number + 500) for number in range(220)))
    summary = extract(lake, str(log))
    assert (summary.now.records, summary.requests_read, summary.requests_usable) == (220, 220, 220)


def test_a_row_that_says_more_takes_the_place_of_one_that_was_counted(lake: Lake, log: Path, tmp_path: Path) -> None:
    append(log, line(1, prompt=None), line(2))
    extract(lake, str(log))
    append(log, line(1, cached_tokens=5, status=200))
    summary = extract(lake, str(log))
    assert (summary.requests_usable, summary.duplicates) == (2, 1)
    once, other = fresh(log, tmp_path)
    assert content(summary) == content(once)
    assert rows(lake) == rows(other)


def test_other_options_or_another_version_read_anew(lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, line(1), line(2))
    extract(lake, str(log), default_model="one")
    assert extract(lake, str(log), default_model="one").now.records == 0
    assert extract(lake, str(log), default_model="two").now.records == 2
    assert {row["model"] for row in rows(lake)} == {"two"}
    monkeypatch.setattr(sys.modules[extract.__module__], "__version__", "next")
    assert extract(lake, str(log), default_model="two").now.records == 2
    assert extract(lake, str(log), default_model="two", is_incremental=False).now.records == 2


def test_a_file_that_is_gone_is_no_longer_part_of_the_account(lake: Lake, log: Path) -> None:
    append(log, line(1), b"rubbish\n")
    append(log.with_name("b.jsonl"), line(2), b"rubbish\n")
    assert extract(lake, str(log.parent)).requests_read == 4
    log.unlink()
    summary = extract(lake, str(log.parent))
    assert (summary.requests_read, summary.rows_quarantined, summary.now.records) == (2, 1, 0)
    assert quarantined(lake) == [("b.jsonl", 2, Fault.NOT_JSON)]
    assert len(rows(lake)) == 2


def test_a_copy_is_a_file_of_its_own(lake: Lake, log: Path) -> None:
    append(log, line(1), line(2))
    extract(lake, str(log.parent))
    append(log.with_name("aaa.jsonl"), line(1), line(2))
    summary = extract(lake, str(log.parent))
    assert (summary.now.records, summary.requests_read, len(rows(lake))) == (2, 4, 2)
    assert is_balanced(summary)


def test_a_log_in_object_storage_grows_too(lake: Lake) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/incremental/app.jsonl", line(1) + line(2))
    extract(lake, "memory://incremental")
    memory.pipe_file("/incremental/app.jsonl", line(1) + line(2) + line(3))
    memory.pipe_file("/incremental/b.jsonl.zst", pa.Codec("zstd").compress(line(4), asbytes=True))
    summary = extract(lake, "memory://incremental")
    assert (summary.now.records, summary.requests_usable) == (2, 4)
    memory.rm("/incremental", recursive=True)


def test_a_table_of_requests_is_a_log(lake: Lake, log: Path, tmp_path: Path) -> None:
    append(log, line(1, block_hashes=[2**64 - 1, 2**63], tenant="t"), line(2, messages=[{"role": "user"}], prompt=None))
    extract(lake, str(log))
    other = Lake("memory://table-of-requests")
    summary = extract(other, f"{lake.uri}/requests/*/data/*.parquet")
    assert [(file.format, file.records) for file in summary.files] == [("lake-table", 2)]
    own = {"source_format": "", "source_file": "", "source_line": 0}
    assert [{**row, **own} for row in rows(other)] == [{**row, **own} for row in rows(lake)]
    fsspec.filesystem("memory").rm("/table-of-requests", recursive=True)


LINES = st.one_of(
    st.integers(0, 9).map(line),
    st.integers(0, 9).map(lambda n: line(n, prompt=None, when=YESTERDAY)),
    st.integers(0, 9).map(lambda n: line(n, status=200, tenant="t")),
    st.integers(0, 3).map(feedback),
    st.sampled_from([b"\n", b"rubbish\n", b"{}\n", b'{"record": "request"}\n', b"\xff\n"]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(LINES, max_size=14), st.lists(st.floats(0, 1), min_size=1, max_size=3), st.integers(0, 4))
def test_read_in_parts_is_read_at_once(lines: list[bytes], cuts: list[float], rotate_at: int) -> None:
    data = b"".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        path, lake = Path(folder, "log", "a.jsonl"), Lake(f"{folder}/lake")
        path.parent.mkdir()
        ends = sorted({int(len(data) * cut) for cut in cuts} | {len(data)})
        for number, end in enumerate(ends):
            path.write_bytes(data[:end])
            if number == rotate_at:
                path = path.rename(path.with_name("a.jsonl.1"))
            summary = extract(lake, str(path.parent), "normalised")
            assert is_balanced(summary)
        once, other = fresh(path.parent, Path(folder), log_format="normalised")
        assert content(summary) == content(once)
        has_place = rotate_at >= len(ends)
        assert rows(lake, has_place=has_place) == rows(other, has_place=has_place)


def test_the_number_of_workers_and_the_size_of_blocks_change_nothing(
    lake: Lake, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, *(line(n % 150, when=NOON + timedelta(hours=n % 30)) for n in range(300)), b"\xff\n", b"half")
    append(log.with_name("b.jsonl"), *(feedback(n) for n in range(5)), line(7), b"{}\n")
    monkeypatch.setattr("warmup_tasks.sources.blocks.BLOCK_BYTES", 3_000)
    expected = extract(lake, str(log.parent), workers=1)
    for workers, large_bytes in ((2, 2**26), (3, 2**26), (1, 0), (3, 0)):
        monkeypatch.setattr("warmup_tasks.sources.log_reading._LARGE_BYTES", large_bytes)
        summary, other = fresh(log.parent, tmp_path, workers=workers)
        assert summary == expected
        assert rows(other) == rows(lake)
        assert quarantined(other) == quarantined(lake)


class Broken(NormalisedSource):
    """A format with a bug."""

    def read_batch(self, batch: Batch) -> None:
        raise KeyError(batch.rows().values("prompt")[0])


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_bug_in_a_worker_is_told_by_its_place_and_not_by_what_it_read(tmp_path: Path, *, is_compiled: bool) -> None:
    task = Task("a.jsonl", Broken(), LineBlock(1, 0, line(1), 1))
    job = Job(tmp_path, is_compiled=is_compiled)
    with Pool(job, [1, 2]) as pool, pytest.raises(RuntimeError, match="KeyError at ") as caught:
        pool.read(iter([task]))
    assert "question" not in str(caught.value)


def test_a_reading_process_that_dies_is_said_so_and_nothing_is_published(
    lake: Lake, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, line(1))
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RetryLaterError, match="reading process ended with status 1"):
        extract(lake, str(log), workers=2)
    assert lake.partitions("requests") == []
