"""Each statement under sql/sources, on an input that fits on the screen."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from warmup_tasks.lake import queries
from warmup_tasks.lake.schemas import FEEDBACK, QUARANTINE, REQUESTS
from warmup_tasks.resources import sql
from warmup_tasks.sources.runs import keys_schema
from warmup_tasks.sources.tabling import STAGED_FEEDBACK

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
CLOSED = pa.schema([("file", pa.string()), ("lines", pa.int64())])
KNOWN = pa.schema([("file", pa.string()), ("name", pa.string()), ("first_line", pa.int64()), ("last_line", pa.int64())])
FORMER = pa.schema([("file", pa.string()), ("name", pa.string())])
KEPT = pa.schema([("file", pa.string()), ("name", pa.string()), ("lines", pa.int64())])


def table(schema: pa.Schema, *rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


def request(line: int, request_id: str = "r1", **columns: Any) -> dict[str, Any]:
    return {"request_id": request_id, "time": NOON, "source_file": "f", "source_line": line, **columns}


def run(name: str, **inputs: pa.Table) -> list[dict[str, Any]]:
    with queries.connect() as connection:
        return queries.run(connection, sql(f"sources/{name}"), inputs).to_pylist()


def rank(staged: list[dict[str, Any]], stored: list[dict[str, Any]]) -> pa.Table:
    former = table(FORMER, {"file": "f", "name": "before"})
    inputs = {"rows_staged": table(REQUESTS, *staged), "rows_stored": table(REQUESTS, *stored), "former": former}
    with queries.connect() as connection:
        repeated = queries.run(connection, sql("sources/repeated_ids"), inputs)
        return queries.run(connection, sql("sources/rank_requests"), {"repeated": repeated})


@pytest.mark.parametrize(
    ("staged", "stored", "kept", "duplicates"),
    [
        ([request(1), request(2)], [], [1], [2]),
        ([request(2)], [request(1)], [1], [2]),
        ([request(1)], [request(2)], [1], []),
        ([request(1)], [request(1)], [1], []),
        ([request(1)], [{**request(1), "source_file": "before"}], [1], []),
        ([request(1)], [{**request(1), "source_file": "another"}], [1], [1]),
        ([request(1), request(2, prompt_sha256="a")], [], [2], [1]),
        ([request(1, prompt_sha256="a"), request(2, prompt_sha256="b")], [], [1, 2], []),
        ([request(1, tenant="a"), request(2, tenant="b")], [], [1, 2], []),
        ([request(1), request(2, "r2")], [], [1, 2], []),
        ([request(1, block_hashes=[7], prompt_sha256="a")], [request(1, block_hashes=[7], prompt_sha256="b")], [1], []),
        ([request(1, block_hashes=[7])], [request(1, block_hashes=[7], prompt_sha256="b")], [1], []),
    ],
)
def test_rank_requests(staged: list[Any], stored: list[Any], kept: list[int], duplicates: list[int]) -> None:
    rows = rank(staged, stored).to_pylist()
    contested = {(row["is_staged"], row["source_line"]) for row in rows}
    alone = [
        r["source_line"]
        for n, rs in ((True, staged), (False, stored))
        for r in rs
        if (n, r["source_line"]) not in contested
    ]
    assert sorted(alone + [row["source_line"] for row in rows if row["is_kept"]]) == kept
    assert [row["source_line"] for row in rows if row["is_duplicate"]] == duplicates
    ids = [row["new_id"] for row in rows if row["is_kept"]]
    assert len(set(ids)) == len(ids)


def test_order_requests_gives_every_request_once_in_time_order_and_itself_again() -> None:
    staged = [request(1, "b", prompt_sha256="x"), request(2, "a"), request(3, "b", prompt_sha256="y"), request(4, "a")]
    stored: list[dict[str, Any]] = []
    for _ in range(2):
        ordered = run(
            "order_requests",
            rows_staged=addressed(5, staged),
            rows_stored=addressed(-1, stored),
            ranking=rank(staged, stored),
        )
        merged = [
            {**rows[row["row"]], **({"request_id": row["new_id"]} if row["new_id"] else {})}
            for row in ordered
            for rows in [staged if row["run"] == 5 else stored]
        ]
        assert [row["source_line"] for row in merged] in ([2, 1, 3], [2, 3, 1])
        assert stored in ([], merged)
        stored = merged


def addressed(run_number: int, rows: list[dict[str, Any]]) -> pa.Table:
    return table(keys_schema(REQUESTS), *({**row, "run": run_number, "row": n} for n, row in enumerate(rows)))


def test_count_requests() -> None:
    staged = [
        request(1, "a", prompt_sha256="x", request_type="chat", model="m", answer_text="y", tenant="t"),
        request(2, "b", prompt_sha256="x", request_type="chat", model="m", status=500, adapter="l"),
        request(3, "c"),
        request(4, "c"),
        request(5, "d"),
    ]
    (counts, unfinished) = count(staged, [], closed=4)
    uses = {name: counts[name] for name in ("timing", "embedding", "prefix", "qa")}
    assert uses == {"timing": 3, "embedding": 2, "prefix": 1, "qa": 1}
    assert (counts["models"], counts["adapters"], counts["tenants"], counts["salts"]) == (["m"], ["l"], ["t"], [])
    assert (unfinished["is_open"], unfinished["timing"], unfinished["embedding"]) == (True, 1, 0)


def test_count_requests_tells_what_was_counted_before_and_gave_way() -> None:
    better = request(9, "a", status=200)
    stored = [request(1, "a"), request(2, "b"), {**request(3, "a"), "source_file": "g"}]
    counts = count([better], stored, closed=9)
    assert [(row["file"], row["is_displaced"], row["timing"]) for row in counts] == [("f", False, 1), ("f", True, 1)]


def count(staged: list[dict[str, Any]], stored: list[dict[str, Any]], closed: int) -> list[dict[str, Any]]:
    return run(
        "count_requests",
        rows_staged=table(REQUESTS, *staged),
        rows_stored=table(REQUESTS, *stored),
        ranking=rank(staged, stored),
        closed=table(CLOSED, {"file": "f", "lines": closed}),
        known=table(KNOWN, {"file": "f", "name": "f", "first_line": 1, "last_line": 5}),
    )


def test_feedback_statements() -> None:
    one = {"time": NOON, "confidence": 0.5, "intent_hash": "i"}
    staged = [
        {**one, "source_file": "f", "source_line": line, "row_sha256": sha256, **more}
        for line, sha256, more in ((1, "a", {}), (2, "a", {}), (3, "b", {"tenant": "t"}))
    ]
    rows = table(STAGED_FEEDBACK, *staged)
    closed = table(CLOSED, {"file": "f", "lines": 2})
    assert run("count_feedback", rows_staged=rows, closed=closed) == [
        {"file": "f", "is_open": False, "rows": ["a"]},
        {"file": "f", "is_open": True, "rows": ["b"]},
    ]
    merged = run("merge_feedback", rows_staged=rows, rows_stored=table(FEEDBACK, one))
    assert sorted(str(row["tenant"]) for row in merged) == ["None", "t"]


def test_list_quarantine_keeps_what_was_not_read_again_under_the_files_new_name() -> None:
    new = [{"source_file": f, "source_line": n, "reason": "x"} for f, n in (("b", 1), ("a", 9), ("a", 2))]
    old = [{"source_file": f, "source_line": n, "reason": "y"} for f, n in (("a", 1), ("c", 3), ("c", 4), ("d", 1))]
    kept = table(KEPT, {"file": "e", "name": "c", "lines": 3})
    listed = run("list_quarantine", rows_staged=table(QUARANTINE, *new), rows_stored=table(QUARANTINE, *old), kept=kept)
    assert [(row["source_file"], row["source_line"]) for row in listed] == [("a", 2), ("a", 9), ("b", 1), ("e", 3)]
