"""How a request looks as a line: the gateway's OpenAI-style form, or the project's own; and lines that went wrong.

Here lives the form only. Every kind of bad line names the fault that it must be quarantined for.
"""

from datetime import datetime
from random import Random
from typing import Any

import orjson

from warmup_tasks.identity import prompt_digest
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.reading import MAX_LINE_BYTES
from warmup_tasks.sources.sample_log.conversations import Asked
from warmup_tasks.sources.sample_log.tenants import MODEL


def gateway_line(asked: Asked) -> bytes:
    """Return the OpenAI-style line: request body and response, the adapter named as the model, as vLLM takes it."""
    tenant = asked.tenant
    request: dict[str, Any] = {"model": tenant.adapter or MODEL, **asked.body, "temperature": 0.2, "stream": True}
    if tenant.cache_salt is not None:
        request["cache_salt"] = tenant.cache_salt
    record: dict[str, Any] = {
        "time": asked.moment.isoformat(timespec="milliseconds"),
        "request_id": asked.request_id,
        "tenant": tenant.name,
        "path": "/v1/completions" if "prompt" in asked.body else "/v1/chat/completions",
        "status": asked.status,
        "latency_ms": asked.latency_ms,
        "request": request,
    }
    if tenant.adapter is not None:
        record["base_model"] = MODEL
    if asked.session_id is not None:
        record["session_id"] = asked.session_id
    if asked.answer is None:
        record["response"] = {"error": {"message": "the model could not answer", "code": asked.status}}
        return orjson.dumps(record)
    usage: dict[str, Any] = {"prompt_tokens": asked.prompt_tokens, "completion_tokens": asked.output_tokens}
    if asked.says_cached:
        usage["prompt_tokens_details"] = None if asked.cached_tokens is None else {"cached_tokens": asked.cached_tokens}
    message = {"message": {"role": "assistant", "content": asked.answer}}
    choice = {"text": asked.answer} if "prompt" in asked.body else message
    record["ttft_ms"] = asked.ttft_ms
    record["response"] = {"created": int(asked.moment.timestamp()), "choices": [{"index": 0, **choice}], "usage": usage}
    return orjson.dumps(record)


def normalised_line(asked: Asked) -> bytes:
    """Return the same request in the project's own format."""
    body = dict(asked.body)
    record: dict[str, Any] = {
        "record": "request",
        "time": asked.moment.isoformat(timespec="milliseconds"),
        "request_id": asked.request_id,
        "tenant": asked.tenant.name,
        "model": MODEL,
        "adapter": asked.tenant.adapter,
        "cache_salt": asked.tenant.cache_salt,
        "session_id": asked.session_id,
        "template_args": body.pop("chat_template_kwargs", None),
        **body,
        "input_tokens": asked.prompt_tokens,
        "output_tokens": asked.output_tokens,
        "cached_tokens": asked.cached_tokens if asked.says_cached else None,
        "ttft_ms": asked.ttft_ms,
        "latency_ms": asked.latency_ms,
        "status": asked.status,
        "answer_text": asked.answer,
    }
    return orjson.dumps({name: value for name, value in record.items() if value is not None})


def health_line(moment: datetime) -> bytes:
    """Return a gateway line that is no request to a model."""
    return orjson.dumps({"time": moment.isoformat(), "method": "GET", "path": "/health", "status": 200})


def feedback_line(random: Random, asked: Asked) -> bytes:
    """Return what users said about an answer; some corrections were adopted often enough to renew it (spec 1.2)."""
    is_poor = random.random() < 0.3
    record: dict[str, Any] = {
        "record": "feedback",
        "time": asked.moment.isoformat(timespec="milliseconds"),
        "tenant": asked.tenant.name,
        "prompt_sha256": prompt_digest(
            asked.body["messages"], asked.body.get("tools"), asked.body.get("chat_template_kwargs")
        ),
        "confidence": round(random.uniform(0.4, 0.84) if is_poor else random.uniform(0.86, 0.99), 2),
        "adopted_count": random.randint(3, 7) if is_poor else 0,
    }
    if is_poor:
        record["correction"] = f"{asked.answer} This changed in November."
    return orjson.dumps(record)


def bad_lines(moment: datetime) -> list[tuple[Fault, bytes]]:
    """Return one line of each kind that goes wrong in the middle of a file, with its fault."""
    good: dict[str, Any] = {"time": moment.isoformat(), "request": {"model": MODEL, "messages": []}}
    return [
        (Fault.NOT_JSON, b"2026-11-26 09:00:00 WARN upstream closed the connection"),
        (Fault.NOT_AN_OBJECT, b"[1, 2, 3]"),
        (Fault.NUL_BYTE, b"\0" * 64),
        (Fault.NOT_UTF8, orjson.dumps(good)[:-2] + b',"note":"caf\xe9"}}'),
        (Fault.NO_TIME, orjson.dumps({"request": good["request"]})),
        (Fault.BAD_TIME, orjson.dumps({**good, "time": "yesterday, about nine"})),
        (Fault.BAD_TYPE, orjson.dumps({**good, "request": {"model": MODEL, "messages": "hello"}})),
        (Fault.EMPTY_TENANT, orjson.dumps({**good, "tenant": ""})),
        (Fault.LINE_TOO_LONG, orjson.dumps({**good, "padding": "x" * MAX_LINE_BYTES})),
    ]
