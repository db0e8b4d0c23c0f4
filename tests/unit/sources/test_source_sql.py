"""Each statement under sql/sources, on an input that fits on the screen."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from warmup_tasks.lake import queries
from warmup_tasks.lake.schemas import FEEDBACK, QUARANTINE, REQUESTS
from warmup_tasks.resources import sql

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
STAGED_FEEDBACK = pa.schema([*FEEDBACK, ("source_file", pa.string()), ("source_line", pa.int64())])


def table(schema: pa.Schema, *rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def request(line: int, request_id: str = "r1", **columns: Any) -> dict[str, Any]:
    return {"request_id": request_id, "time": NOON, "source_file": "f", "source_line": line, **columns}


def run(name: str, **inputs: pa.Table) -> list[dict[str, Any]]:
    with queries.connect() as connection:
        return queries.run(connection, sql(f"sources/{name}"), inputs).to_pylist()


def rank(staged: list[dict[str, Any]], stored: list[dict[str, Any]]) -> pa.Table:
    inputs = {"rows_staged": table(REQUESTS, *staged), "rows_stored": table(REQUESTS, *stored)}
    with queries.connect() as connection:
        return queries.run(connection, sql("sources/rank_requests"), inputs)


@pytest.mark.parametrize(
    ("staged", "stored", "kept", "duplicates"),
    [
        ([request(1), request(2)], [], [1], [2]),
        ([request(2)], [request(1)], [1], [2]),
        ([request(1)], [request(2)], [1], []),
        ([request(1)], [request(1)], [1], []),
        ([request(1), request(2, prompt_sha256="a")], [], [2], [1]),
        ([request(1, prompt_sha256="a"), request(2, prompt_sha256="b")], [], [1, 2], []),
        ([request(1, tenant="a"), request(2, tenant="b")], [], [1, 2], []),
        ([request(1), request(2, "r2")], [], [1, 2], []),
    ],
)
def test_rank_requests(staged: list[Any], stored: list[Any], kept: list[int], duplicates: list[int]) -> None:
    rows = rank(staged, stored).to_pylist()
    assert sorted(row["source_line"] for row in rows if row["is_kept"]) == kept
    assert [row["source_line"] for row in rows if row["is_duplicate"]] == duplicates
    ids = [row["new_id"] for row in rows if row["is_kept"]]
    assert len(set(ids)) == len(ids)


def test_merge_requests_gives_every_request_once_in_time_order_and_itself_again() -> None:
    staged = [request(1, "b", prompt_sha256="x"), request(2, "a"), request(3, "b", prompt_sha256="y"), request(4, "a")]
    stored: list[dict[str, Any]] = []
    for _ in range(2):
        merged = run(
            "merge_requests",
            rows_staged=table(REQUESTS, *staged),
            rows_stored=table(REQUESTS, *stored),
            ranking=rank(staged, stored),
        )
        assert [row["source_line"] for row in merged] in ([2, 1, 3], [2, 3, 1])
        assert stored in ([], merged)
        stored = merged


def test_count_requests() -> None:
    staged = [
        request(1, "a", prompt_sha256="x", request_type="chat", model="m", answer_text="y", tenant="t"),
        request(2, "b", prompt_sha256="x", request_type="chat", model="m", status=500, adapter="l"),
        request(3, "c"),
        request(4, "c"),
    ]
    (counts,) = run("count_requests", rows_staged=table(REQUESTS, *staged), ranking=rank(staged, []))
    uses = {name: counts[name] for name in ("requests_usable", "timing", "embedding", "prefix", "qa")}
    assert uses == {"requests_usable": 3, "timing": 3, "embedding": 2, "prefix": 1, "qa": 1}
    assert (counts["models"], counts["adapters"], counts["tenants"], counts["salts"]) == (["m"], ["l"], ["t"], [])


def test_feedback_statements() -> None:
    one = {"time": NOON, "confidence": 0.5, "intent_hash": "i"}
    staged = table(STAGED_FEEDBACK, {**one, "source_line": 1}, {**one, "source_line": 2}, {**one, "tenant": "t"})
    assert run("count_feedback", rows_staged=staged) == [{"staged": 3, "kept": 2}]
    merged = run("merge_feedback", rows_staged=staged, rows_stored=table(FEEDBACK, one))
    assert sorted(str(row["tenant"]) for row in merged) == ["None", "t"]


def test_quarantine_statements() -> None:
    rows = [
        {"source_file": f, "source_line": n, "reason": r} for f, n, r in (("b", 1, "x"), ("a", 9, "y"), ("a", 2, "y"))
    ]
    staged = table(QUARANTINE, *rows)
    assert run("count_quarantine", rows_staged=staged) == [{"reason": "y", "rows": 2}, {"reason": "x", "rows": 1}]
    listed = run("list_quarantine", rows_staged=staged)
    assert [(row["source_file"], row["source_line"]) for row in listed] == [("a", 2), ("a", 9), ("b", 1)]


def test_missing_fields_counts_by_format_what_requests_lack() -> None:
    rows = [
        request(1, source_format="a", model="default", body_json="{}", status=200),
        request(2, "r2", source_format="a", model="m", is_truncated=True, status=500, tenant="t", cached_tokens=0),
        request(3, "r3", source_format="b", model="m"),
    ]
    with queries.connect() as connection:
        found = queries.run(
            connection,
            sql("sources/missing_fields"),
            {"requests": table(REQUESTS, *rows)},
            {"default_model": "default"},
        ).to_pylist()
    assert {row["field"]: row["missing"] for row in found if row["source_format"] == "a"} == {
        "answer_text": 1, "cached_tokens": 1, "input_tokens": 2, "model": 1, "prompt": 1, "status": 0, "tenant": 1,
        "ttft_ms": 2, "whole_prompt": 1,
    }  # fmt: skip
    assert {row["requests"] for row in found if row["source_format"] == "b"} == {1}


def test_first_problems_takes_some_of_each_reason_in_the_order_of_lines() -> None:
    rows = [
        {"source_file": "f", "source_line": line, "reason": "x" if line != 3 else "y", "detail": "", "raw_bytes": 1}
        for line in (5, 4, 3, 2, 1)
    ]
    with queries.connect() as connection:
        found = queries.run(
            connection, sql("sources/first_problems"), {"quarantine": table(QUARANTINE, *rows)}, {"per_reason": 2}
        ).to_pylist()
    assert [row["source_line"] for row in found] == [1, 2, 3]
