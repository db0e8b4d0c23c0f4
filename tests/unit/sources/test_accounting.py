"""For any bytes at all: no crash, every record accounted for, and the order of files changes nothing."""

import tempfile
from pathlib import Path

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract
from warmup_tasks.sources.base import Request
from warmup_tasks.sources.faults import BadRecordError
from warmup_tasks.sources.registry import SOURCES, formats

NAMES = (
    "record", "time", "timestamp", "created", "request", "response", "messages", "prompt", "input", "output", "model",
    "tools", "usage", "status", "tenant", "cache_salt", "request_id", "choices", "session_id", "error", "confidence",
    "block_hashes", "chat_template_kwargs", "path", "metadata", "prompt_sha256", "latency_ms",
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=8),
    st.sampled_from(["request", "feedback", "2026-11-26T02:00:00Z", 1795651200, 1795651200123, "r1", "", "{}", "{"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=5,
)
RECORDS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=7)
GOOD = st.integers(0, 5).map(
    lambda n: orjson.dumps(
        {"record": "request", "time": 1795651200 + n, "request_id": f"r{n % 3}", "prompt": f"p{n % 4}"}
    )
)
LINES = st.one_of(GOOD, RECORDS.map(lambda r: orjson.dumps(r, default=str)), st.binary(max_size=30))


@settings(max_examples=200, deadline=None)
@given(RECORDS)
def test_no_record_crashes_a_format(record: dict[str, object]) -> None:
    parsed = orjson.loads(orjson.dumps(record))
    for source in SOURCES:
        try:
            mapped = source.read_record(parsed)
        except BadRecordError:
            continue
        assert not isinstance(mapped, Request) or len(mapped.identity()) > 0


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(LINES, max_size=6), min_size=2, max_size=3), st.sampled_from(formats()), st.booleans())
def test_every_record_is_accounted_for_whatever_the_order_of_files(
    files: list[list[bytes]], log_format: str, has_line_end: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, lines in enumerate(files):
            data = b"\n".join(lines) + (b"\n" if has_line_end else b"")
            Path(folder, f"{number}.jsonl").write_bytes(data)
        together = run(f"{folder}/lake-1", folder + "/*.jsonl", log_format)
        for number in reversed(range(len(files))):
            run(f"{folder}/lake-2", f"{folder}/{number}.jsonl", log_format)
        if together is None:
            return
        parts = (together.requests_usable, together.feedback_rows, together.rows_quarantined, together.duplicates)
        assert together.requests_read == sum(parts) + together.not_a_request
        assert together == run(f"{folder}/lake-1", folder + "/*.jsonl", log_format)
        if log_format != "auto":  # alone, a file of rubbish is in no known format; together it is read as rubbish
            assert requests(f"{folder}/lake-1") == requests(f"{folder}/lake-2")


def run(lake: str, log: str, log_format: str) -> ExtractionSummary | None:
    try:
        return extract(Lake(lake), log, log_format).held()
    except ConfigurationError:
        return None


def requests(uri: str) -> list[object]:
    lake = Lake(uri)
    return [row for day in lake.partitions("requests") for row in lake.read(f"requests/{day}", "requests").to_pylist()]
