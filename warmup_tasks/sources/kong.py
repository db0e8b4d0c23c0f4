"""Kong AI Gateway logs: the JSON of Kong's logging plugins, with an ``ai`` object for requests to a model.

Names after developer.konghq.com/ai-gateway/ai-audit-log-reference (3.6 to 3.12) and Kong's
``kong/llm/plugin/shared-filters/serialize-analytics.lua``; the payloads are bodies as OpenAI's API has them, read by
the rules of ``openai.py``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from warmup_tasks.sources import fields
from warmup_tasks.sources.base import Mapped, NotARequest, Recognition, Request, Sample
from warmup_tasks.sources.fields import Path
from warmup_tasks.sources.openai import OpenAISource
from warmup_tasks.sources.structured import StructuredSource, json_value

_OPENAI = OpenAISource()
_NO_MODEL = "UNSPECIFIED"  # Kong's own word for it
_PLUGINS = ("proxy", "ai-proxy", "ai-proxy-advanced")
_TENANT: tuple[Path, ...] = (
    ("consumer", "custom_id"), ("consumer", "username"), ("consumer", "id"), ("authenticated_entity", "id"),
)  # fmt: skip


class KongSource(StructuredSource):
    """Reads Kong AI Gateway logs: one JSON object a line, or the arrays that the HTTP log plugin sends in batches."""

    name = "kong"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "set config.logging.log_payloads to true on the AI Proxy plugin",
        "answer_text": "set config.logging.log_payloads to true on the AI Proxy plugin",
        "input_tokens": "set config.logging.log_statistics to true on the AI Proxy plugin",
        "cached_tokens": "Kong 3.11 logs it, where the engine runs with --enable-prompt-tokens-details",
        "tenant": "authenticate consumers at the gateway, so that the log names them",
    }

    def recognise(self, sample: Sample) -> Recognition:
        """A record belongs to this format when it has Kong's latencies, or an AI plugin's usage or meta."""
        return self.vote(sample, _is_own, "Kong's latencies, or ai.*.usage and ai.*.meta,")

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request; a record without ``ai`` object is some other proxied request."""
        ai = fields.mapping(record, "ai")
        plugin = _plugin(ai)
        if not plugin:
            return NotARequest("no ai object: not a request to a model")
        meta, usage = fields.mapping(plugin, "meta"), fields.mapping(plugin, "usage")
        payload = {**fields.mapping(ai, "payload"), **fields.mapping(plugin, "payload")}
        body, response = json_value(payload.get("request")), json_value(payload.get("response"))
        content = body if isinstance(body, dict) else {}
        model = fields.text(content, "model") or fields.text(meta, "request_model", "response_model")
        mapped = _OPENAI.read_record(
            {
                "time": record.get("started_at"),
                "request_id": fields.text(record, ("request", "id")),
                "tenant": fields.text(record, *_TENANT),
                "request": {**content, "model": model or _NO_MODEL},
                "response": response if isinstance(response, dict) else None,
                "usage": _usage(usage),
                "latency_ms": _latency(record, meta),
                "ttft_ms": usage.get("time_to_first_token"),
                "status": fields.small_count(record, ("response", "status")),
                "endpoint": fields.text(record, ("request", "uri"), "upstream_uri"),
            }
        )
        if isinstance(mapped, Request) and mapped.model == _NO_MODEL:
            mapped.model = None
        return mapped


def _is_own(record: Mapping[str, Any]) -> bool:
    if isinstance(record.get("latencies"), dict) and "started_at" in record:
        return True
    ai = record.get("ai")
    return isinstance(ai, dict) and "meta" in _plugin(ai)


def _plugin(ai: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object of the plugin that called the model: by its name, else the first with usage and meta."""
    named = [ai[name] for name in _PLUGINS if name in ai]
    for value in (*named, *ai.values()):
        if isinstance(value, dict) and ("meta" in value or "usage" in value):
            return value
    return {}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage under OpenAI's names; before 3.9 the last letter was missing."""
    return {
        "prompt_tokens": usage.get("prompt_tokens", usage.get("prompt_token")),
        "completion_tokens": usage.get("completion_tokens", usage.get("completion_token")),
        "prompt_tokens_details": usage.get("prompt_tokens_details"),
    }


def _latency(record: Mapping[str, Any], meta: Mapping[str, Any]) -> float | None:
    value = fields.number(record, ("latencies", "request"))
    return value if value is not None else fields.number(meta, "llm_latency")
