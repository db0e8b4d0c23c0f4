"""Large request logs of each format, for benchmarks: records of about 1 kB, in the order in which they came, with a few
bad lines. Same seed, same bytes."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

START = datetime(2026, 11, 26, tzinfo=UTC)
LINES_PER_BAD_LINE = 1_000
_TENANTS, _WORDS = 40, 2_000
_REQUESTS_PER_S = 12.0


class Call:
    """What one request is about; each form writes it in its own way."""

    def __init__(self, number: int, chance: random.Random, words: list[str], heads: list[str]) -> None:
        self.number = number
        self.tenant = min(int(chance.paretovariate(1.2)) - 1, _TENANTS - 1)
        self.time = START + timedelta(seconds=number / _REQUESTS_PER_S + chance.uniform(0, 2))
        self.messages = [
            {"role": "system", "content": heads[self.tenant]},
            {"role": "user", "content": _text(chance, words, chance.randint(50, 220))},
        ]
        self.answer = _text(chance, words, 90)
        self.tokens = (chance.randint(50, 400), chance.randint(5, 100))
        self.ttft_ms, self.latency_ms = round(chance.uniform(20, 300), 2), round(chance.uniform(300, 3000), 2)

    @property
    def body(self) -> dict[str, Any]:
        """The request body."""
        return {"model": "demo-chat", "messages": self.messages, "temperature": 0.7, "max_tokens": 256}

    @property
    def usage(self) -> dict[str, Any]:
        """The usage that the response tells."""
        asked, answered = self.tokens
        return {
            "prompt_tokens": asked,
            "completion_tokens": answered,
            "prompt_tokens_details": {"cached_tokens": self.number % 3 * 16},
        }

    @property
    def response(self) -> dict[str, Any]:
        """The response body."""
        choice = {"index": 0, "message": {"role": "assistant", "content": self.answer}, "finish_reason": "stop"}
        return {"id": f"chatcmpl-{self.number:x}", "model": "demo-chat", "choices": [choice], "usage": self.usage}

    def after(self, milliseconds: float) -> str:
        """A time after the request came, as text."""
        return (self.time + timedelta(milliseconds=milliseconds)).isoformat()


def _normalised(call: Call) -> dict[str, Any]:
    return {
        "record": "request", "time": call.time.isoformat(), "request_id": f"req-{call.number:012x}",
        "tenant": f"tenant-{call.tenant}", "model": "demo-chat", "session_id": f"s{call.number // 4}",
        "messages": call.messages, "input_tokens": call.tokens[0], "output_tokens": call.tokens[1], "cached_tokens": 0,
        "ttft_ms": call.ttft_ms, "latency_ms": call.latency_ms, "status": 200, "answer_text": call.answer,
    }  # fmt: skip


def _openai(call: Call) -> dict[str, Any]:
    return {
        "timestamp": call.time.timestamp(), "request_id": f"req-{call.number:012x}",
        "tenant_id": f"tenant-{call.tenant}", "session_id": f"s{call.number // 4}", "endpoint": "/v1/chat/completions",
        "request": call.body, "response": call.response, "latency_ms": call.latency_ms, "ttft_ms": call.ttft_ms,
        "status": 200,
    }  # fmt: skip


def _agent_text(call: Call) -> dict[str, Any]:
    prompt = "\n".join(message["content"] for message in call.messages)
    microseconds = int(call.time.timestamp() * 10**6)
    return {"timestamp": microseconds, "input": prompt, "output": call.answer, "session_id": f"s{call.number // 4}"}


def _litellm(call: Call) -> dict[str, Any]:
    return {
        "request_id": f"r{call.number}", "call_type": "acompletion", "startTime": call.after(0),
        "endTime": call.after(call.latency_ms), "completionStartTime": call.after(call.ttft_ms), "model": "demo-chat",
        "team_id": f"team-{call.tenant}", "prompt_tokens": call.tokens[0], "completion_tokens": call.tokens[1],
        "cache_hit": "False", "status": "success", "messages": {}, "proxy_server_request": call.body,
        "response": call.response, "metadata": orjson.dumps({"usage_object": call.usage}).decode(),
    }  # fmt: skip


def _kong(call: Call) -> dict[str, Any]:
    payload = {
        name: orjson.dumps(value).decode() for name, value in (("request", call.body), ("response", call.response))
    }
    return {
        "started_at": int(call.time.timestamp() * 1000),
        "request": {"id": f"r{call.number}", "uri": "/v1/chat/completions"},
        "response": {"status": 200}, "latencies": {"request": call.latency_ms},
        "consumer": {"username": f"team-{call.tenant}"},
        "ai": {"proxy": {"meta": {"request_model": "demo-chat"}, "usage": call.usage, "payload": payload}},
    }  # fmt: skip


def _otel(call: Call) -> dict[str, Any]:
    parts = [
        {"role": message["role"], "parts": [{"type": "text", "content": message["content"]}]}
        for message in call.messages
    ]
    attributes = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "demo-chat",
        "gen_ai.conversation.id": f"s{call.number // 4}", "gen_ai.input.messages": orjson.dumps(parts).decode(),
    }  # fmt: skip
    start = int(call.time.timestamp() * 10**6) * 1000
    return {
        "name": "chat demo-chat", "traceId": f"{call.number:032x}", "spanId": f"{call.number + 1:016x}",
        "startTimeUnixNano": f"{start}", "endTimeUnixNano": f"{start + int(call.latency_ms * 10**6)}",
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
    }  # fmt: skip


def _mooncake(call: Call) -> dict[str, Any]:
    hashes = [(call.tenant << 32) + block for block in range(60)] + [(call.number << 40) + block for block in range(40)]
    milliseconds = int((call.time - START).total_seconds() * 1000)
    return {"timestamp": milliseconds, "input_length": 51_000, "output_length": 90, "hash_ids": hashes}


FORMS: dict[str, Callable[[Call], dict[str, Any]]] = {
    "normalised": _normalised,
    "openai": _openai,
    "agent-text": _agent_text,
    "litellm": _litellm,
    "kong": _kong,
    "otel": _otel,
    "mooncake": _mooncake,
}
"""Format → how it writes a call."""


def write(path: Path, form: str, size: int, seed: int = 7) -> int:
    """Write a log of about ``size`` bytes and return the number of its records, the bad lines included."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("etaoinshrdlucmfwyp", k=chance.randint(2, 9))) for _ in range(_WORDS)]
    heads = [_text(chance, words, 300) for _ in range(_TENANTS)]
    make, written, records = FORMS[form], 0, 0
    with path.open("wb") as file:
        while written < size:
            call = Call(records, chance, words, heads)
            is_bad = records % LINES_PER_BAD_LINE == LINES_PER_BAD_LINE - 1
            line = b'{"broken": ' if is_bad else orjson.dumps(make(call))
            written += file.write(line + b"\n")
            records += 1
    return records


def _text(chance: random.Random, words: list[str], size: int) -> str:
    return " ".join(chance.choices(words, k=size // 6))
