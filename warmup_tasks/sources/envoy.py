"""Envoy AI Gateway access logs: JSON lines whose names the operator chose, and no bodies.

Understood are the names of aigateway.envoyproxy.io/docs/capabilities/observability/accesslogs and of the gateway's own
default format, which follows OpenTelemetry's. Such a log feeds the demand; nothing is warmed from it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from warmup_tasks.sources import fields
from warmup_tasks.sources.base import Mapped, NotARequest, Recognition, Request, Sample, Source
from warmup_tasks.sources.fields import Path

_MODEL: tuple[Path, ...] = (
    "genai_model_name", "gen_ai.request.model", "x-ai-eg-model", "model", "gen_ai.response.model",
)  # fmt: skip
_INPUT: tuple[Path, ...] = ("genai_tokens_input", "gen_ai.usage.input_tokens", "llm_input_token", "input_tokens")
_OUTPUT: tuple[Path, ...] = ("genai_tokens_output", "gen_ai.usage.output_tokens", "llm_output_token", "output_tokens")
_CACHED: tuple[Path, ...] = (
    "genai_tokens_cached_input", "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_input_tokens",
    "llm_cached_input_token", "cached_input_tokens",
)  # fmt: skip
_TIME: tuple[Path, ...] = ("start_time", "time", "timestamp")
_PATH: tuple[Path, ...] = ("x-envoy-origin-path", "x-envoy-original-path", "path", "url.path")
_STATUS: tuple[Path, ...] = ("response_code", "http.response.status_code", "status")
_ID: tuple[Path, ...] = ("x-request-id", "request_id")
_SESSION: tuple[Path, ...] = ("session.id", "gen_ai.conversation.id", "session_id")
_TENANT: tuple[Path, ...] = ("x-tenant-id", "tenant", "tenant_id", "x-user-id", "user.id")
_TYPES = (
    ("/chat/completions", "chat"),
    ("/completions", "completion"),
    ("/embeddings", "embedding"),
    ("/messages", "chat"),
)


class EnvoySource(Source):
    """Reads Envoy AI Gateway access logs."""

    name = "envoy-ai-gateway"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "access logs hold no bodies: use the gateway's OpenTelemetry spans with content, or the engine's log",
        "answer_text": "access logs hold no bodies: use the gateway's OpenTelemetry spans with content",
        "model": "add %REQ(X-AI-EG-MODEL)% to the access log's format as genai_model_name",
        "input_tokens": "list InputToken in llmRequestCosts and log it as genai_tokens_input",
        "output_tokens": "list OutputToken in llmRequestCosts and log it as genai_tokens_output",
        "cached_tokens": "list CachedInputToken in llmRequestCosts and log it as genai_tokens_cached_input",
        "tenant": "log the header that names the tenant as tenant",
    }

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it is an access log's and names a model or tokens."""
        return sample.vote(_is_own, "an access log's response code with a model's name or token counts", 0.9)

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request; what names no model (health checks, tool calls) is none."""
        told = {name: value for name, value in record.items() if value != "-"}  # Envoy's sign for nothing
        model = fields.text(told, *_MODEL)
        path = (fields.text(told, *_PATH) or "").partition("?")[0].rstrip("/")
        if model is None:
            return NotARequest("an access line that names no model")
        return Request(
            time=fields.time(told, *_TIME),
            request_id=fields.text(told, *_ID),
            tenant=fields.text(told, *_TENANT),
            model=model,
            request_type=next((kind for end, kind in _TYPES if path.endswith(end)), "unknown"),
            session_id=fields.text(told, *_SESSION),
            input_tokens=fields.count(told, *_INPUT),
            output_tokens=fields.count(told, *_OUTPUT),
            cached_tokens=fields.count(told, *_CACHED),
            latency_ms=fields.number(told, "duration", "duration_ms"),
            status=fields.small_count(told, *_STATUS) or None,
        )


def _is_own(record: Mapping[str, Any]) -> bool:
    names = record.keys()
    is_access = any(name in names for name in _STATUS[:2]) and bool({"start_time", "duration", "method"} & names)
    return is_access and any(name in names for name in (*_MODEL[:3], *_INPUT[:3]))
