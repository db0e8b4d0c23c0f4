"""OpenAI-style JSON lines: request body and response of one chat, completion or embedding call in one line.

The body stands under ``request`` (or ``request_body``, ``body``), or flat at the top level; common gateways' names for
time, tenant, latency and status are understood. ``docs/sources.md`` lists them, in the order in which they are tried.
"""

from collections.abc import Mapping
from itertools import compress
from typing import Any

import numpy as np

from warmup_tasks.sources import fields, prompts
from warmup_tasks.sources.base import Batch, BatchSource, Recognition, Sample
from warmup_tasks.sources.columns import Column, Rows, as_list
from warmup_tasks.sources.fields import Path

_BODY: tuple[str, ...] = ("request", "request_body", "body")
_RESPONSE: tuple[str, ...] = ("response", "response_body")
_CONTENT = ("messages", "prompt", "input")
_NAMED = (*_CONTENT, "model")
_PROMPT_NAMES = prompts.PromptNames(template_args="chat_template_kwargs", others=("input",))
_NO_REQUEST = "neither a request body nor a model"
_OTHER_ENDPOINTS = frozenset((
    "health", "healthz", "livez", "readyz", "ping", "metrics", "version", "models", "tokenize", "detokenize", "rerank",
    "score", "moderations", "files", "batches", "transcriptions", "speech", "generations", "load",
))  # fmt: skip

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
_NESTED_STATUS: tuple[Path, ...] = (("response", "status_code"), ("response", "status"))
_OUTCOMES = {
    **dict.fromkeys(("success", "ok", "succeeded", "completed"), 200),
    **dict.fromkeys(("error", "failed", "failure"), 500),
}


class OpenAISource(BatchSource):
    """Reads OpenAI-style request and response lines."""

    name = "openai"

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it has a request body with content, nested or flat."""
        return sample.vote(_has_body, "a request body with messages, prompt or input", 0.8)

    def read_batch(self, batch: Batch) -> None:
        """Read requests; a line of another endpoint, or with neither body nor model, is none."""
        rows = batch.rows()
        endpoints = _endpoints(rows)
        if not _OTHER_ENDPOINTS.isdisjoint(endpoints):
            grounds = [f"endpoint {endpoint}" if endpoint in _OTHER_ENDPOINTS else None for endpoint in endpoints]
            is_request = batch.leave_out(rows, grounds)
            rows, endpoints = rows.where(is_request), list(compress(endpoints, is_request))
        bodies = rows.nested(_body, _BODY, unless="body")
        are_named = bodies.has(*_NAMED)
        if not np.all(are_named):
            is_request = batch.leave_out(rows, [None if named else _NO_REQUEST for named in are_named])
            rows, bodies = rows.where(is_request), bodies.where(is_request)
            endpoints = list(compress(endpoints, is_request))
        _read_requests(batch, rows, bodies, endpoints)


def _read_requests(batch: Batch, rows: Rows, bodies: Rows, endpoints: list[str]) -> None:
    responses = rows.nested(_response, _RESPONSE, unless="body")
    usage = responses.inner("usage").or_inner(rows, "usage")
    kinds, prompt = bodies.prompts(_kind_and_prompt, _PROMPT_NAMES, endpoints)
    model, adapter = _model_and_adapter(rows, bodies)
    batch.take_rows(
        rows,
        time=_times(rows, responses),
        request_id=responses.fill(rows.text("request_id", "id"), lambda these: these.text("id")),
        tenant=_tenants(rows, bodies),
        model=model,
        adapter=adapter,
        cache_salt=_salts(rows, bodies),
        request_type=kinds,
        session_id=bodies.fill(rows.text(*_SESSION), lambda these: these.text(*_SESSION)),
        prompt=prompt,
        is_truncated=rows.flag("truncated", "is_truncated"),
        input_tokens=usage.count("prompt_tokens", "input_tokens"),
        output_tokens=usage.count("completion_tokens", "output_tokens"),
        cached_tokens=usage.count(*_CACHED),
        ttft_ms=rows.fill(rows.number(*_TTFT_MS), lambda these: these.number(*_TTFT_S, scale=1000.0)),
        latency_ms=rows.fill(rows.number(*_LATENCY_MS), lambda these: these.number(*_LATENCY_S, scale=1000.0)),
        status=_statuses(rows, responses),
        answer_text=responses.texts_or(_answer, ("choices", 0, "message", "content")),
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
    return {} if name else dict(record)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, str) and value.lstrip().startswith("{"))


def _endpoints(rows: Rows) -> list[str]:
    values = rows.values("endpoint", "path", "url", ("request", "url"), ("request", "path"))
    if not set(map(type, values)) <= {str, type(None)}:
        values = [value if isinstance(value, str) else None for value in values]
    ends = {value: _last_part(value or "") for value in set(values)}
    return [ends[value] for value in values]


def _last_part(path: str) -> str:
    return path.partition("?")[0].rstrip("/").rpartition("/")[2].lower()


def _kind_and_prompt(body: Mapping[str, Any], endpoint: str) -> tuple[str, prompts.Prompt]:
    if body.get("messages") is not None:
        return "chat", prompts.chat(body["messages"], body.get("tools"), body.get("chat_template_kwargs"))
    if body.get("prompt") is not None:
        return "completion", prompts.completion(body["prompt"])
    if body.get("input") is not None and endpoint != "responses":
        return "embedding", prompts.completion(body["input"], "input")
    return "unknown", prompts.NO_CONTENT


def _times(rows: Rows, responses: Rows) -> Column:
    """Return when the requests came; last the time at which the response was made."""
    if all(rows.has_text(*_TIME)):
        return rows.time(*_TIME)
    created = responses.values("created")
    objects = [{**record, "response_created": when} for record, when in zip(rows.objects, created, strict=True)]
    return rows.beside(objects).time(*_TIME, "response_created")


def _model_and_adapter(rows: Rows, bodies: Rows) -> tuple[Column, Column]:
    """With a base model beside it, a body's model of another name is the adapter."""
    named, base = bodies.text("model"), rows.text("base_model")
    adapter = rows.text("adapter", "lora_name", ("lora_request", "lora_name"))
    if "base_model" not in rows.names:
        return named, adapter
    names = list(zip(as_list(adapter), as_list(base), as_list(named), strict=True))
    return (
        [base or name for _, base, name in names],
        [name if adapter is None and base is not None and name != base else adapter for adapter, base, name in names],
    )


def _tenants(rows: Rows, bodies: Rows) -> Column:
    """A log that names users only is read user by user: an answer is never shared between them."""
    named: Column = rows.tenant("tenant")
    named = rows.fill(named, lambda these: these.text(*_TENANT))
    named = rows.fill(named, lambda these: these.text(*_METADATA_TENANT))
    named = bodies.fill(named, lambda these: these.text("user"))
    return rows.fill(named, lambda these: these.text("user", "end_user"))


def _salts(rows: Rows, bodies: Rows) -> Column:
    return rows.fill(bodies.salt("cache_salt"), lambda these: these.salt("cache_salt"))


def _statuses(rows: Rows, responses: Rows) -> Column:
    if rows.are_integers(*_STATUS):
        return rows.small_count(*_STATUS)
    if not any(rows.has(*_STATUS, *_NESTED_STATUS)) and "error" not in responses.names:
        return [None] * len(rows)
    return rows.map(_status, responses.objects)


def _status(record: Mapping[str, Any], response: Mapping[str, Any]) -> int | None:
    name, value = fields.find(record, _STATUS)
    if isinstance(value, str) and not value.isdecimal():
        return _OUTCOMES.get(value.lower())
    if name:
        return fields.small_count(record, name)
    _, nested = fields.find(record, _NESTED_STATUS)
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
