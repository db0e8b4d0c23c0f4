"""The log that a real vLLM writes at DEBUG gives back the very tokens of the requests that it served."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from warmup_tasks.lake import Lake
from warmup_tasks.local.vllm_cpu import make_model, start_vllm
from warmup_tasks.sources import extract
from warmup_tasks.sources.options import ReadOptions

pytestmark = pytest.mark.real_engine

MESSAGES = [
    {"role": "system", "content": 'Be brief. It\'s "quoted" \\n'},
    {"role": "user", "content": "What\nis é 漢 🙂?"},
]
TOOLS = [
    {"type": "function", "function": {"name": "z", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}}
]
CHATS: list[dict[str, Any]] = [
    {"model": "demo", "messages": MESSAGES, "cache_salt": "5a17"},
    {"model": "adapter-a", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "none"},
    {"model": "demo", "messages": [{"role": "user", "content": "word " * 300}]},
]
PROMPTS: list[str | list[int]] = ["import os\nprint('x')", [5, 6, 7, 8]]


def test_what_the_server_logged_is_what_it_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    model = make_model(Path(__file__).parents[2] / "out" / "models" / "small")
    flags = [
        "--enable-log-requests",
        "--enable-log-outputs",
        "--lora-modules",
        f"adapter-a={model.adapters['adapter-a']}",
    ]
    log = tmp_path / "vllm.log"
    with (
        start_vllm(model, "demo", log, more_flags=flags) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        started = datetime.now(UTC).replace(microsecond=0)
        for chat in CHATS:
            http.post("/v1/chat/completions", json={**chat, "max_tokens": 2}).raise_for_status()
        gateway = {"X-Request-Id": "gw-1"}  # the JSON body then stands under another id: the tokens are left
        http.post("/v1/chat/completions", json={**CHATS[0], "max_tokens": 2}, headers=gateway).raise_for_status()
        for prompt in PROMPTS:
            body = {"model": "demo", "prompt": prompt, "max_tokens": 2}
            http.post("/v1/completions", json=body).raise_for_status()
        sent = [tokens(http, chat) for chat in (*CHATS, CHATS[0])]
        sent += [tokens(http, {"model": "demo", "prompt": prompt}) for prompt in PROMPTS]

        summary = extract(Lake(str(tmp_path / "lake")), str(log), options=ReadOptions(epoch=started))
        assert [read.format for read in summary.files] == ["vllm-log"]
        assert (summary.requests_usable, summary.usable_by_use["prefix"], summary.rows_quarantined) == (6, 6, 0)
        assert summary.not_a_request_by_ground["call of tokenize"] == 5
        rows = [
            row
            for day in summary.days
            for row in Lake(str(tmp_path / "lake")).read(f"requests/{day}", "requests").to_pylist()
        ]
        rebuilt = [(row, tokens(http, as_sent(row))) for row in rows]
    assert sorted(found for _, found in rebuilt) == sorted(sent)
    assert all(row["input_tokens"] == len(found) for row, found in rebuilt)
    assert [row["adapter"] for row, _ in rebuilt].count("adapter-a") == 1
    assert [row["cache_salt"] for row, _ in rebuilt].count("5a17") == 1
    assert sum(row["answer_text"] is not None for row, _ in rebuilt) >= 4
    assert all(started <= row["time"] for row, _ in rebuilt)


def as_sent(row: dict[str, Any]) -> dict[str, Any]:
    body = orjson.loads(row["body_json"])
    model = row["adapter"] or row["model"]
    if "messages" in body:
        return {"model": model, "messages": body["messages"], "tools": body.get("tools")}
    return {"model": model, "prompt": body.get("prompt", body.get("token_ids"))}


def tokens(http: httpx.Client, body: dict[str, Any]) -> list[int]:
    """Return the engine's token ids; those of a prompt that consists of ids already are these."""
    if isinstance(body.get("prompt"), list):
        return list(body["prompt"])
    asked = {name: body[name] for name in ("model", "messages", "prompt", "tools") if body.get(name) is not None}
    answer = http.post("/tokenize", json=asked)
    answer.raise_for_status()
    return list(answer.json()["tokens"])
