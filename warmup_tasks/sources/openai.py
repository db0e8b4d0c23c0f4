"""OpenAI-style JSON lines: request body and response of one chat, completion or embedding call in one line.

The body stands under ``request`` (or ``request_body``, ``body``), or flat at the top level; common gateways' names for
time, tenant, latency and status are understood. ``docs/sources.md`` lists them, in the order in which they are tried.
"""

from collections.abc import Mapping
from typing import Any

from warmup_tasks.sources import fields, prompts
from warmup_tasks.sources.base import Mapped, NotARequest, Recognition, Request, Sample, Source
from warmup_tasks.sources.fields import Path

_BODY: tuple[str, ...] = ("request", "request_body", "body")
_RESPONSE: tuple[str, ...] = ("response", "response_body")
_CONTENT = ("messages", "prompt", "input")
_OTHER_ENDPOINTS = (
    "health", "healthz", "livez", "readyz", "ping", "metrics", "version", "models", "tokenize", "detokenize", "rerank",
    "score", "moderations", "files", "batches", "transcriptions", "speech", "generations", "load",
)  # fmt: skip

_TIME: tuple[Path, ...] = (
    "time", "timestamp", "ts", "start_time", "startTime", "started_at", "request_time", "created_at", "created",
)  # fmt: skip
_TENANT: tuple[Path, ...] = ("tenant_id", "team_id", "team", "organization", "org_id", "project_id", "project")
_METADATA_TENANT: tuple[Path, ...] = tuple(("metadata", name) for name in ("tenant", "tenant_id", "team_id", "team"))
_SESSION: tuple[Path, ...] = ("session_id", "conversation_id", "thread_id", "chat_id", ("metadata", "session_id"))
_CACHED: tuple[Path, ...] = (
    ("prompt_tokens_details", "cached_tokens"),
    ("input_tokens_details", "cached_tokens"),
    "cached_tokens",
)
_LATENCY_MS: tuple[Path, ...] = ("latency_ms", "duration_ms", "response_time_ms", "total_ms", "elapsed_ms")
_LATENCY_S: tuple[Path, ...] = ("latency_s", "duration_s", "latency", "duration", "response_time", "elapsed")
_TTFT_MS: tuple[Path, ...] = ("ttft_ms", "time_to_first_token_ms", "first_token_ms")
_TTFT_S: tuple[Path, ...] = ("ttft_s", "ttft", "time_to_first_token")
_STATUS: tuple[Path, ...] = ("status", "status_code", "http_status", "response_status")
_OUTCOMES = {
    **dict.fromkeys(("success", "ok", "succeeded", "completed"), 200),
    **dict.fromkeys(("error", "failed", "failure"), 500),
}


class OpenAISource(Source):
    """Reads OpenAI-style request and response lines."""

    name = "openai"

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it has a request body with content, nested or flat."""
        return sample.vote(_has_body, "a request body with messages, prompt or input", 0.8)

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request, or say that this line is none: another endpoint, or neither body nor model."""
        endpoint = _endpoint(record)
        if endpoint in _OTHER_ENDPOINTS:
            return NotARequest(f"endpoint {endpoint}")
        body, response = _body(record), _response(record)
        if not any(body.get(name) is not None for name in (*_CONTENT, "model")):
            return NotARequest("neither a request body nor a model")
        usage = fields.mapping(response, "usage") or fields.mapping(record, "usage")
        request_type, prompt = _prompt(body, endpoint)
        named, base = fields.text(body, "model"), fields.text(record, "base_model")
        adapter = fields.text(record, "adapter", "lora_name", ("lora_request", "lora_name"))
        if base is not None and adapter is None and named != base:
            adapter = named
        return Request(
            time=fields.time({**record, "response_created": response.get("created")}, *_TIME, "response_created"),
            request_id=fields.text(record, "request_id", "id") or fields.text(response, "id"),
            tenant=_tenant(record, body),
            model=base or named,
            adapter=adapter,
            cache_salt=fields.salt({**record, **body}, "cache_salt"),
            request_type=request_type,
            session_id=fields.text(record, *_SESSION) or fields.text(body, *_SESSION),
            prompt=prompt,
            is_truncated=fields.flag(record, "truncated", "is_truncated"),
            input_tokens=fields.count(usage, "prompt_tokens", "input_tokens"),
            output_tokens=fields.count(usage, "completion_tokens", "output_tokens"),
            cached_tokens=fields.count(usage, *_CACHED),
            ttft_ms=_milliseconds(record, _TTFT_MS, _TTFT_S),
            latency_ms=_milliseconds(record, _LATENCY_MS, _LATENCY_S),
            status=_status(record, response),
            answer_text=_answer(response),
        )


def _has_body(record: Mapping[str, Any]) -> bool:
    nested = [record[name] for name in _BODY if isinstance(record.get(name), dict)]
    bodies = [inner.get("body") if isinstance(inner.get("body"), dict) else inner for inner in nested] or [record]
    has_content = any(name in body for body in bodies for name in _CONTENT)
    return has_content and (bool(nested) or "model" in record)


def _body(record: Mapping[str, Any]) -> dict[str, Any]:
    name, value = fields.find(record, _BODY)
    if not _is_object(value):
        return dict(record)
    body = fields.mapping(record, name)
    return fields.mapping(body, "body") if _is_object(body.get("body")) else body


def _response(record: Mapping[str, Any]) -> dict[str, Any]:
    """A response that is no object (an error text, a stream) says nothing; what stands beside it still counts."""
    name, value = fields.find(record, _RESPONSE)
    if _is_object(value):
        response = fields.mapping(record, name)
        return fields.mapping(response, "body") if _is_object(response.get("body")) else response
    return {} if name else {name: record[name] for name in ("choices", "usage", "error") if name in record}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{"))


def _endpoint(record: Mapping[str, Any]) -> str:
    _, value = fields.find(record, ("endpoint", "path", "url", ("request", "url"), ("request", "path")))
    return value.partition("?")[0].rstrip("/").rpartition("/")[2].lower() if isinstance(value, str) else ""


def _prompt(body: Mapping[str, Any], endpoint: str) -> tuple[str, prompts.Prompt]:
    if body.get("messages") is not None:
        return "chat", prompts.chat(body["messages"], body.get("tools"), body.get("chat_template_kwargs"))
    if body.get("prompt") is not None:
        return "completion", prompts.completion(body["prompt"])
    if body.get("input") is not None and endpoint != "responses":
        return "embedding", prompts.completion(body["input"], "input")
    return "unknown", prompts.NO_CONTENT


def _tenant(record: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    """A log that names users only is read user by user: an answer is never shared between them."""
    return (
        fields.tenant(record, "tenant")
        or fields.text(record, *_TENANT)
        or fields.text(record if isinstance(record.get("metadata"), dict) else {}, *_METADATA_TENANT)
        or fields.text(body, "user")
        or fields.text(record, "user", "end_user")
    )


def _milliseconds(record: Mapping[str, Any], in_ms: tuple[Path, ...], in_s: tuple[Path, ...]) -> float | None:
    value = fields.number(record, *in_ms)
    return value if value is not None else fields.number(record, *in_s, scale=1000.0)


def _status(record: Mapping[str, Any], response: Mapping[str, Any]) -> int | None:
    name, value = fields.find(record, _STATUS)
    if isinstance(value, str) and not value.isdecimal():
        return _OUTCOMES.get(value.lower())
    if name:
        return fields.small_count(record, name)
    _, nested = fields.find(record, (("response", "status_code"), ("response", "status")))
    if isinstance(nested, int) and 100 <= nested < 600:
        return nested
    if response.get("error"):
        _, code = fields.find(response, (("error", "code"),))
        return code if isinstance(code, int) and 400 <= code < 600 else 500
    return None


def _answer(response: Mapping[str, Any]) -> str | None:
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict):
        return None
    _, content = fields.find(first, (("message", "content"), "text"))
    return content if isinstance(content, str) else None
