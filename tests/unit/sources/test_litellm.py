"""LiteLLM's spend logs: rows as its schema and its logging code describe them, from files and from a real Postgres."""

import csv
import io
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warmup_tasks.errors import ConfigurationError, RetryLaterError, WarmupError
from warmup_tasks.identity import prompt_digest
from warmup_tasks.lake import Lake
from warmup_tasks.sources import ExtractionSummary, extract, postgres
from warmup_tasks.sources.base import NotARequest, Request
from warmup_tasks.sources.litellm import LiteLLMSource

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is open?"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "b": 1, "a": 2}}}]
BODY = {
    "model": "public", "messages": MESSAGES, "tools": TOOLS, "cache_salt": "5a17",
    "chat_template_kwargs": {"enable_thinking": False}, "stream": True,
}  # fmt: skip
RESPONSE = {"id": "chatcmpl-1", "choices": [{"message": {"role": "assistant", "content": "Nothing."}}]}
METADATA = {"additional_usage_values": {"prompt_tokens_details": {"cached_tokens": 32}}}
# Columns: github.com/BerriAI/litellm, schema.prisma, LiteLLM_SpendLogs; values: get_logging_payload beside it.
ROW: dict[str, Any] = {
    "request_id": "chatcmpl-1",
    "call_type": "acompletion",
    "api_key": "hash",
    "spend": 0.1,
    "total_tokens": 43,
    "prompt_tokens": 40,
    "completion_tokens": 3,
    "startTime": "2026-11-26T02:00:00.250Z",
    "endTime": "2026-11-26T02:00:01.750Z",
    "completionStartTime": "2026-11-26T02:00:00.500Z",
    "model": "hosted_vllm/demo",
    "model_group": "public",
    "custom_llm_provider": "hosted_vllm",
    "user": "u1",
    "metadata": orjson.dumps(METADATA).decode(),
    "cache_hit": "False",
    "team_id": "blue",
    "end_user": "ann",
    "messages": "{}",
    "response": orjson.dumps(RESPONSE).decode(),
    "session_id": "s1",
    "status": "success",
    "proxy_server_request": orjson.dumps(BODY).decode(),
}  # fmt: skip


def mapped(**changes: Any) -> Request:
    request = LiteLLMSource().read_record({**ROW, **changes})
    assert isinstance(request, Request)
    return request


def read(log: str, lake: Lake) -> tuple[ExtractionSummary, list[dict[str, Any]]]:
    summary = extract(lake, log)
    parts = (summary.requests_usable, summary.rows_quarantined, summary.duplicates, summary.not_a_request)
    assert summary.requests_read == sum(parts)
    assert {file.format for file in summary.files} == {"litellm"}
    days = lake.partitions("requests")
    return summary, [row for day in days for row in lake.read(f"requests/{day}", "requests").to_pylist()]


def is_the_row(row: dict[str, Any]) -> bool:
    """Whether a stored row is what ``ROW`` says; the order of keys in tools is not compared, a database has none."""
    body = orjson.loads(row["body_json"])
    sent = {"messages": MESSAGES, "tools": TOOLS, "template_args": BODY["chat_template_kwargs"]}
    return body == sent and (row["cache_salt"], row["tenant"], row["model"]) == ("5a17", "blue", "demo")


def test_a_row_whose_prompt_stands_in_the_proxys_request() -> None:
    request = mapped()
    assert request.time == datetime(2026, 11, 26, 2, 0, 0, 250_000, tzinfo=UTC)
    assert (request.request_id, request.tenant, request.session_id) == ("chatcmpl-1", "blue", "s1")
    assert (request.model, request.cache_salt, request.request_type) == ("demo", "5a17", "chat")
    assert (request.input_tokens, request.output_tokens, request.cached_tokens) == (40, 3, 32)
    assert (request.ttft_ms, request.latency_ms, request.status) == (250.0, 1500.0, 200)
    assert (request.answer_text, request.is_truncated) == ("Nothing.", False)
    assert request.prompt.sha256 == prompt_digest(MESSAGES, TOOLS, {"enable_thinking": False})
    assert (
        request.prompt.body_json
        == orjson.dumps({"messages": MESSAGES, "tools": TOOLS, "template_args": {"enable_thinking": False}}).decode()
    )


def test_messages_count_before_the_proxys_request_and_a_nested_body_is_found() -> None:
    other = [{"role": "user", "content": "Hi"}]
    assert mapped(messages=orjson.dumps(other).decode()).prompt.sha256 == prompt_digest(
        other, TOOLS, {"enable_thinking": False}
    )
    assert (
        mapped(messages=other, proxy_server_request={}).prompt.body_json
        == '{"messages":[{"role":"user","content":"Hi"}]}'
    )
    assert mapped(proxy_server_request={"url": "/", "body": BODY}).prompt.sha256 == mapped().prompt.sha256
    for empty in ("{}", {}, "", None, "[]"):
        assert mapped(messages=empty).prompt.sha256 == mapped().prompt.sha256
        assert mapped(messages=empty, proxy_server_request=empty if empty != "[]" else None).prompt.body_json is None


def test_texts_that_the_proxy_cut_or_redacted_are_never_warmed() -> None:
    # LITELLM_TRUNCATED_PAYLOAD_FIELD, as _sanitize_request_body_for_spend_logs_payload puts it into long texts
    cut = [{"role": "user", "content": "Once upon... (litellm_truncated skipped 5000 chars) ...the end"}]
    request = mapped(proxy_server_request={"messages": cut})
    assert (request.is_truncated, request.prompt.body_json is None) == (True, False)
    redacted = mapped(proxy_server_request={"messages": [{"role": "user", "content": "redacted-by-litellm"}]})
    assert (redacted.is_truncated, redacted.prompt.body_json) == (True, None)
    answer = {"choices": [{"message": {"content": "a... (litellm_truncated skipped 9 chars) ...z"}}]}
    assert mapped(response=answer).answer_text is None


@pytest.mark.parametrize(
    ("hit", "cached", "ttft"),
    [("True", None, None), ("False", 32, 250.0), ("", 32, 250.0), ("None", 32, 250.0), (None, 32, 250.0)],
)
def test_an_answer_from_the_proxys_cache_says_nothing_of_the_engine(
    hit: Any, cached: int | None, ttft: float | None
) -> None:
    assert (mapped(cache_hit=hit).cached_tokens, mapped(cache_hit=hit).ttft_ms) == (cached, ttft)


def test_without_streaming_there_is_no_first_token() -> None:
    assert mapped(completionStartTime=ROW["endTime"]).ttft_ms is None
    assert mapped(completionStartTime=None).ttft_ms is None


@pytest.mark.parametrize(
    ("row", "tenant"),
    [
        ({"team_id": ""}, "ann"),
        ({"team_id": None, "organization_id": "org"}, "org"),
        ({"team_id": None, "end_user": ""}, "u1"),
        ({"team_id": None, "end_user": None, "user": ""}, None),
    ],
)
def test_the_tenant_is_the_team_else_who_asked(row: dict[str, Any], tenant: str | None) -> None:
    assert mapped(**row).tenant == tenant


def test_models_errors_and_counts() -> None:
    assert mapped(model="demo", custom_llm_provider="").model == "demo"
    assert mapped(model="").model == "public"
    failed = mapped(status="failure", metadata={"error_information": {"error_code": "429"}}, prompt_tokens=0)
    assert (failed.status, failed.input_tokens, failed.cached_tokens) == (429, None, None)
    assert mapped(status="failure", metadata={}).status == 500
    assert mapped(status=None, metadata={}).status is None
    anthropic = {"usage_object": {"cache_read_input_tokens": 5}}
    assert mapped(metadata=anthropic).cached_tokens == 5


@pytest.mark.parametrize(
    ("call_type", "body", "request_type", "prompt"),
    [
        ("atext_completion", {"prompt": "1 + 1 ="}, "completion", '{"prompt":"1 + 1 ="}'),
        ("aembedding", {"input": ["cat"]}, "embedding", '{"prompt":"cat"}'),
        ("anthropic_messages", {"messages": MESSAGES, "system": "x"}, "chat", None),
        ("aresponses", {"input": "Hi"}, "chat", None),
        ("pass_through_endpoint", {"messages": MESSAGES[1:]}, "chat",
         '{"messages":[{"role":"user","content":"What is open?"}]}'),
    ],
)  # fmt: skip
def test_calls_by_their_type(call_type: str, body: dict[str, Any], request_type: str, prompt: str | None) -> None:
    request = mapped(call_type=call_type, proxy_server_request=body)
    assert (request.request_type, request.prompt.body_json) == (request_type, prompt)


@pytest.mark.parametrize("call_type", ["aimage_generation", "atranscription", "arerank", "pass_through_endpoint", ""])
def test_calls_of_other_kinds_are_no_requests(call_type: str) -> None:
    found = LiteLLMSource().read_record({**ROW, "call_type": call_type, "proxy_server_request": "{}"})
    assert isinstance(found, NotARequest)
    assert found.ground.startswith("call of ")


def test_the_standard_logging_payload_is_understood() -> None:
    # docs.litellm.ai/docs/proxy/logging_spec
    payload = {
        "id": "x-1", "call_type": "acompletion", "startTime": 1795651200.25, "endTime": 1795651201.75,
        "completionStartTime": 1795651200.5, "model": "demo", "messages": MESSAGES,
        "model_parameters": {"tools": TOOLS},
        "metadata": {"user_api_key_team_id": "blue"}, "response": RESPONSE, "status": "success", "prompt_tokens": 40,
    }  # fmt: skip
    request = LiteLLMSource().read_record(payload)
    assert isinstance(request, Request)
    assert (request.request_id, request.tenant, request.ttft_ms, request.answer_text) == (
        "x-1",
        "blue",
        250.0,
        "Nothing.",
    )
    assert request.prompt.sha256 == prompt_digest(MESSAGES, TOOLS)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "page", "csv", "parquet"])
def test_rows_in_each_kind_of_file(tmp_path: Path, suffix: str) -> None:
    rows = [ROW, {**ROW, "request_id": "other", "call_type": "arerank"}]
    path = tmp_path / f"spend.{suffix}"
    if suffix == "parquet":
        times = pa.array([1795658400250000000] * 2, pa.timestamp("ns"))
        plain = [{name: value for name, value in row.items() if name != "startTime"} for row in rows]
        pq.write_table(pa.Table.from_pylist(plain).append_column("startTime", times), path)
    elif suffix == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, ROW.keys())
        writer.writeheader()
        writer.writerows(rows)
        path.write_text(out.getvalue().replace("2026-11-26T", "2026-11-26 ").replace("Z,", ","))
    else:  # JSON lines, the list of GET /spend/logs, a page of GET /spend/logs/v2
        whole = {"jsonl": b"\n".join(map(orjson.dumps, rows)), "json": orjson.dumps(rows)}
        path.write_bytes(whole.get(suffix) or orjson.dumps({"data": rows, "total": 2}, option=orjson.OPT_INDENT_2))
    summary, (row,) = read(str(path), Lake(str(tmp_path / "lake")))
    assert is_the_row(row)
    assert (row["time"].isoformat(), row["latency_ms"], row["cached_tokens"]) == (
        "2026-11-26T02:00:00.250000+00:00",
        1500.0,
        32,
    )
    assert summary.not_a_request_by_ground == {"call of type rerank": 1}
    assert summary.usable_by_use == {"prefix": 1, "embedding": 1, "qa": 1, "timing": 1}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The address of a real Postgres with an empty spend log, made by Debian's tools for this module."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*"))
    if shutil.which("pg_createcluster") is None or os.geteuid() != 0 or not versions:
        pytest.skip("no Postgres that this user can start: needs pg_createcluster and root")
    pytest.importorskip("psycopg")
    version, name = versions[-1].name, f"warmup_test_{os.getpid()}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subprocess.run(["pg_createcluster", "--start", "-p", f"{port}", version, name], check=True, capture_output=True)
    try:
        run = ["runuser", "-u", "postgres", "--", "psql", "-p", f"{port}", "-v", "ON_ERROR_STOP=1", "-c"]
        for statement in (
            "create role reader login password 'p@ss/word'",
            "create database litellm owner reader",
            "create database empty",
        ):
            subprocess.run([*run, statement], check=True, capture_output=True)
        yield f"postgresql://reader:p%40ss%2Fword@127.0.0.1:{port}/litellm"
    finally:
        subprocess.run(["pg_dropcluster", "--stop", version, name], check=True, capture_output=True)


def fill(url: str, rows: list[dict[str, Any]]) -> None:
    """Write rows into a table as prisma makes it: times without zone in UTC, JSON as jsonb."""
    import psycopg

    kinds = dict.fromkeys(ROW, "text")
    kinds |= dict.fromkeys(("startTime", "endTime", "completionStartTime"), "timestamp(3)")
    kinds |= dict.fromkeys(("metadata", "messages", "response", "proxy_server_request"), "jsonb")
    kinds |= dict.fromkeys(("total_tokens", "prompt_tokens", "completion_tokens"), "integer")
    columns = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
    places = ", ".join("%s" for _ in ROW)
    with psycopg.connect(url) as connection:
        connection.execute('drop table if exists "LiteLLM_SpendLogs"')
        connection.execute(f'create table "LiteLLM_SpendLogs" ({columns})')
        for row in rows:
            connection.execute(f'insert into "LiteLLM_SpendLogs" values ({places})', [row[name] for name in ROW])


def test_rows_straight_from_postgres(database: str, tmp_path: Path) -> None:
    rows = [{**ROW, "request_id": f"r{number:05}"} for number in range(1200)]
    fill(database, [*rows[::-1], {**ROW, "request_id": "no", "call_type": "arerank"}])
    lake = Lake(str(tmp_path))
    summary, stored = read(database, lake)
    assert summary.files[0].file == "litellm.LiteLLM_SpendLogs"
    assert summary.files[0].ground == "call_type, startTime and endTime in 64 of 64 lines"
    assert (summary.requests_usable, summary.not_a_request) == (1200, 1)
    assert sorted(row["request_id"] for row in stored) == [row["request_id"] for row in rows]
    assert all(map(is_the_row, stored))
    assert {row["time"].isoformat() for row in stored} == {"2026-11-26T02:00:00.250000+00:00"}
    again, _ = read(database, lake)
    assert again == summary


def test_no_word_of_the_password_is_stored(database: str, tmp_path: Path) -> None:
    fill(database, [ROW])
    summary, _ = read(database, Lake(str(tmp_path)))
    assert "ss/word" not in summary.model_dump_json() + "".join(repr(path) for path in tmp_path.rglob("*"))


def test_an_empty_table_and_another_database_are_said(database: str, tmp_path: Path) -> None:
    fill(database, [])
    lake = Lake(str(tmp_path))
    assert extract(lake, database, "litellm").requests_read == 0
    with pytest.raises(ConfigurationError, match=r"/empty has no table LiteLLM_SpendLogs: name the proxy's database"):
        extract(lake, database.replace("/litellm", "/empty"))
    for wrong in (database.replace("p%40ss", "x"), database.replace("/litellm", "/nowhere")):
        with pytest.raises(ConfigurationError, match="refuses: ") as caught:
            extract(lake, wrong)
        assert "word" not in str(caught.value).replace("password", "")


def test_a_database_that_does_not_answer_may_do_so_later(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"postgresql://u:secret@127.0.0.1:{closed.getsockname()[1]}/litellm"
        with pytest.raises(RetryLaterError, match="does not answer") as caught:
            extract(Lake(str(tmp_path)), url)
    assert "secret" not in str(caught.value)
    assert postgres.place(url) == url.replace("u:secret@", "")


def test_a_database_can_not_be_written_to(database: str) -> None:
    import psycopg

    fill(database, [ROW])
    with pytest.raises(WarmupError), postgres._Session(database) as session:
        session.connection.execute('delete from "LiteLLM_SpendLogs"')
    with psycopg.connect(database) as connection:
        found = connection.execute('select count(*) from "LiteLLM_SpendLogs"').fetchone()
    assert found == (1,)
