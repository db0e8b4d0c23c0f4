"""Langfuse's exports: the one from the UI on real files, the others on rows as its documentation describes them."""

import csv
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract
from warmup_tasks.sources.base import NotARequest, Request
from warmup_tasks.sources.langfuse import LangfuseSource

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is open?"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "b": 1, "a": 2}}}]
# Fields and types: langfuse.com/docs, "Blob storage export field reference", enriched observations (observations_v2/).
ROW: dict[str, Any] = {
    "id": "obs-1",
    "trace_id": "trace-1",
    "project_id": "p",
    "environment": "default",
    "type": "GENERATION",
    "parent_observation_id": "",
    "start_time": "2026-11-26 02:00:00.250000",
    "end_time": "2026-11-26 02:00:01.750000",
    "name": "chat",
    "metadata": {},
    "level": "DEFAULT",
    "input": orjson.dumps({"messages": MESSAGES, "tools": TOOLS}).decode(),
    "output": '{"role": "assistant", "content": "Nothing."}',
    "provided_model_name": "demo",
    "model_parameters": '{"temperature":0}',
    "usage_details": {"input": 8, "input_cached_tokens": 32, "output": 3, "total": 43},
    "completion_start_time": "2026-11-26 02:00:00.500000",
    "latency": 1500.0,
    "time_to_first_token": 250.0,
    "tool_calls": [],
    "tool_definitions": {"f": "{}"},
    "user_id": "ann",
    "session_id": "s1",
}
# As ObservationsView of the public API: GET /api/public/observations; v2 names the model providedModelName.
VIEW: dict[str, Any] = {
    "id": "obs-2",
    "traceId": "trace-2",
    "type": "GENERATION",
    "name": "chat",
    "startTime": "2026-11-26T02:00:02.250Z",
    "endTime": "2026-11-26T02:00:03.750Z",
    "completionStartTime": None,
    "model": "demo",
    "modelParameters": {"temperature": 0},
    "input": MESSAGES,
    "output": {"role": "assistant", "content": "Nothing."},
    "usage": {"input": 40, "output": 3, "total": 43, "unit": "TOKENS"},
    "level": "ERROR",
    "timeToFirstToken": 0.25,
    "latency": 1.5,
}


def mapped(record: dict[str, Any]) -> Request:
    request = LangfuseSource().read_record(record)
    assert isinstance(request, Request)
    return request


def read(path: Path) -> tuple[ExtractionSummary, list[dict[str, Any]]]:
    lake = Lake(str(path.parent / "lake"))
    summary = extract(lake, str(path))
    parts = (summary.requests_usable, summary.rows_quarantined, summary.duplicates, summary.not_a_request)
    assert summary.requests_read == sum(parts)
    assert {file.format for file in summary.files} == {"langfuse"}
    days = lake.partitions("requests")
    return summary, [row for day in days for row in lake.read(f"requests/{day}", "requests").to_pylist()]


def as_csv(*rows: dict[str, Any]) -> bytes:
    """As the field reference notes on CSV: null empty, objects and lists as JSON."""
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys())
    writer.writeheader()
    for row in rows:
        writer.writerow({k: orjson.dumps(v).decode() if isinstance(v, dict | list) else v for k, v in row.items()})
    return out.getvalue().encode()


def test_every_observation_of_the_ui_export_is_read(tmp_path: Path, data_dir: Path) -> None:
    lake = Lake(str(tmp_path))
    summary = extract(lake, str(data_dir / "langfuse"))
    assert (summary.requests_read, summary.requests_usable, summary.not_a_request) == (88, 25, 63)
    assert (summary.rows_quarantined, summary.duplicates) == (0, 0)
    assert summary.not_a_request_by_ground == {
        "Langfuse agent": 4, "Langfuse chain": 1, "Langfuse span": 52, "Langfuse tool": 6
    }  # fmt: skip
    # 14: whole chat prompts and texts; the rest has no input, an input that is no request, or tools that are not logged
    assert summary.usable_by_use == {"prefix": 14, "embedding": 14, "qa": 7, "timing": 25}
    assert summary.tenants == 2  # user_123 and demo-user
    assert sum(read.format == "langfuse" for read in summary.files) == 10


def test_ui_exports_become_the_prompts_that_were_sent(tmp_path: Path, data_dir: Path) -> None:
    lake = Lake(str(tmp_path))
    summary = extract(lake, str(data_dir / "langfuse"))
    rows = [row for day in summary.days for row in lake.read(f"requests/{day}", "requests").to_pylist()]
    by_id = {row["request_id"]: row for row in rows}
    for name in ("crewai-2025-07-11", "beeai-2025-08-01"):
        logged = orjson.loads((data_dir / "langfuse" / f"{name}.trace.json").read_bytes())["observations"]
        for observation in logged:
            if observation["type"] == "GENERATION" and observation["input"]:
                sent = orjson.loads(observation["input"])
                row = by_id[observation["id"]]
                expected = sent["messages"] if isinstance(sent, dict) else sent
                assert orjson.loads(row["body_json"])["messages"] == expected
                assert not row["is_truncated"]
    pydantic = [row for row in rows if row["source_file"].startswith("pydantic-ai-2025-06")]
    assert [orjson.loads(row["body_json"]) for row in pydantic] == [
        {"messages": [
            {"content": "You are a helpful assistant that answers questions clearly and concisely.", "role": "system"},
            {"content": "What is Langfuse?", "role": "user"},
        ]}
    ]  # fmt: skip
    assert [(row["tenant"], row["session_id"]) for row in pydantic] == [("user_123", "session_abc")]
    (tool,) = [row for row in rows if row["source_file"].startswith("microsoft") and not row["is_truncated"]][:1]
    assert orjson.loads(tool["body_json"])["tools"][0]["function"]["name"] == "get_weather"


def test_langchains_tools_and_calls_stand_where_the_request_had_them(data_dir: Path) -> None:
    logged = orjson.loads((data_dir / "langfuse" / "langgraph-python-2025-08-22.trace.json").read_bytes())
    requests = [mapped(o) for o in logged["observations"] if o["type"] == "GENERATION"]
    longest = max(requests, key=lambda request: len(request.prompt.body_json or ""))
    body = orjson.loads(longest.prompt.body_json or "")
    assert [message["role"] for message in body["messages"]] == ["user", "user", "assistant", "tool"]
    assert body["messages"][2]["content"] is None
    assert body["messages"][2]["tool_calls"][0]["function"]["name"] == "Web-Search"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["Web-Search"]
    assert not longest.is_truncated


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_a_row_of_the_blob_export_in_each_of_its_file_types(tmp_path: Path, suffix: str) -> None:
    rows = [ROW, {**ROW, "id": "obs-9", "type": "SPAN", "input": "", "usage_details": {}}]
    path = tmp_path / f"export.{suffix}"
    if suffix == "parquet":
        usage = pa.array([list(row["usage_details"].items()) for row in rows], pa.map_(pa.string(), pa.int64()))
        plain = [
            {k: v for k, v in row.items() if k not in ("usage_details", "metadata", "tool_definitions")} for row in rows
        ]
        pq.write_table(pa.Table.from_pylist(plain).append_column("usage_details", usage), path)
    elif suffix == "csv":
        path.write_bytes(as_csv(*rows))
    else:
        path.write_bytes(orjson.dumps(rows) if suffix == "json" else b"\n".join(map(orjson.dumps, rows)) + b"\n")
    summary, (row,) = read(path)
    assert summary.not_a_request_by_ground == {"Langfuse span": 1}
    assert row["time"] == datetime(2026, 11, 26, 2, 0, 0, 250_000, tzinfo=UTC)
    assert (row["request_id"], row["tenant"], row["session_id"], row["model"]) == ("obs-1", "ann", "s1", "demo")
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"]) == (40, 32, 3)
    assert (row["ttft_ms"], row["latency_ms"], row["status"], row["answer_text"]) == (250.0, 1500.0, None, "Nothing.")
    assert row["body_json"] == orjson.dumps({"messages": MESSAGES, "tools": TOOLS}).decode()
    assert not row["is_truncated"]


def test_a_page_of_the_public_api(tmp_path: Path) -> None:
    path = tmp_path / "page.json"
    v2 = {**VIEW, "id": "obs-3", "providedModelName": "demo-2", "userId": "ann", "sessionId": "s"}
    del v2["model"]
    path.write_bytes(
        orjson.dumps({"data": [VIEW, v2], "meta": {"page": 1, "totalItems": 2}}, option=orjson.OPT_INDENT_2)
    )
    _, rows = read(path)
    first, second = sorted(rows, key=lambda row: str(row["request_id"]))
    assert (first["request_id"], first["session_id"], first["tenant"]) == ("obs-2", "trace-2", None)
    assert (first["ttft_ms"], first["latency_ms"], first["status"], first["input_tokens"]) == (250.0, 1500.0, 500, 40)
    assert (second["model"], second["tenant"], second["session_id"]) == ("demo-2", "ann", "s")
    assert first["body_json"] == orjson.dumps({"messages": MESSAGES}).decode()


def test_a_trace_with_its_observations_passes_its_user_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(
        orjson.dumps({"observations": [VIEW], "id": "t", "timestamp": "2026-11-26T02:00:00Z", "userId": "ann"})
    )
    assert read(path)[1][0]["tenant"] == "ann"


def test_traces_and_scores_of_an_export_are_no_requests(tmp_path: Path) -> None:
    # same reference, traces/ and scores/
    trace = {"id": "t", "timestamp": "2026-11-26 02:00:00", "name": "n", "bookmarked": False, "user_id": None}
    score = {"id": "s", "timestamp": "2026-11-26 02:00:00", "trace_id": "t", "observation_id": None, "name": "helpful",
             "value": 1, "source": "API", "data_type": "BOOLEAN"}  # fmt: skip
    for folder, row in (("observations_v2", ROW), ("traces", trace), ("scores", score)):
        (tmp_path / "log" / folder).mkdir(parents=True)
        (tmp_path / "log" / folder / "1.jsonl").write_bytes(orjson.dumps(row) + b"\n")
    summary, _ = read(tmp_path / "log")
    assert summary.requests_usable == 1
    assert summary.not_a_request_by_ground == {"Langfuse score": 1, "Langfuse trace": 1}


@pytest.mark.parametrize(
    ("logged", "body", "request_type"),
    [
        ("1 + 1 =", '{"prompt":"1 + 1 ="}', "completion"),
        ({"prompt": "1 + 1 ="}, '{"prompt":"1 + 1 ="}', "completion"),
        (None, None, "unknown"),
        ("", None, "unknown"),
        ({"contents": [{"parts": []}]}, None, "unknown"),
        ({"messages": ["role='user' content='x'"]}, None, "chat"),
        ([{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
         '{"messages":[{"role":"user","content":"Hi"}]}', "chat"),
    ],
)  # fmt: skip
def test_inputs_are_taken_for_what_they_are(logged: Any, body: str | None, request_type: str) -> None:
    request = mapped({**VIEW, "input": logged})
    assert (request.prompt.body_json, request.request_type) == (body, request_type)


def test_embeddings_are_requests_of_their_own_kind() -> None:
    request = mapped({**VIEW, "type": "EMBEDDING", "input": "cat"})
    assert (request.request_type, request.prompt.body_json) == ("embedding", '{"prompt":"cat"}')


def test_tools_that_only_the_export_names_make_the_prompt_incomplete() -> None:
    without = {**ROW, "input": orjson.dumps(MESSAGES).decode()}
    assert mapped(without).is_truncated
    assert not mapped({**without, "tool_definitions": "{}"}).is_truncated
    assert mapped({**without, "tool_definitions": {}, "tool_calls": ['{"name":"f"}']}).is_truncated


def test_an_unknown_type_is_named_and_nothing_else_of_the_row() -> None:
    found = LangfuseSource().read_record({**ROW, "type": "GUARDRAIL"})
    assert found == NotARequest("Langfuse guardrail")
