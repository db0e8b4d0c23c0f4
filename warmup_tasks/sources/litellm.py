"""LiteLLM spend logs: rows of the table ``LiteLLM_SpendLogs`` as JSON, CSV or Parquet, from the API, or from Postgres.

``messages`` is mostly ``{}``; the request body then stands in ``proxy_server_request``, which the proxy stores on
request only, and in which it cuts long texts: such a prompt is known as partly logged. Postgres keeps JSON without the
order of keys, so tool definitions may come back in another order than they were sent. Form: schema.prisma and
spend_tracking_utils.py in github.com/BerriAI/litellm; docs.litellm.ai, StandardLoggingPayload.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from warmup_tasks.sources import fields, messages, prompts
from warmup_tasks.sources.base import Mapped, NotARequest, Recognition, Request, Sample
from warmup_tasks.sources.nests import Nest
from warmup_tasks.sources.prompts import NO_CONTENT, Prompt
from warmup_tasks.sources.structured import StructuredSource, json_value

_CUT, _REDACTED = "litellm_truncated", "redacted-by-litellm"
_TYPES = {"completion": "chat", "text_completion": "completion", "embedding": "embedding"}
_OTHER_CHATS = ("anthropic_messages", "responses", "generate_content", "generate_content_stream")
_BY_BODY = ("", "pass_through_endpoint")
_REQUIRED = {"call_type", "startTime", "endTime"}
_TENANT = ("team_id", ("metadata", "user_api_key_team_id"), "organization_id", "end_user", "user")
_USAGES = (("metadata", "usage_object"), ("metadata", "additional_usage_values"))
_CACHED = (("prompt_tokens_details", "cached_tokens"), "cache_read_input_tokens")
_ERROR_CODE = ("metadata", "error_information", "error_code")


class LiteLLMSource(StructuredSource):
    """Reads LiteLLM spend logs."""

    name = "litellm"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "set general_settings.store_prompts_in_spend_logs: true, and the environment variable "
        "MAX_STRING_LENGTH_PROMPT_IN_DB above the longest prompt",
        "ttft_ms": "only streamed requests have a completionStartTime of their own",
    }
    nests: ClassVar[tuple[Nest, ...]] = (Nest("data.item"),)

    def recognise(self, sample: Sample) -> Recognition:
        """A row belongs to this format when it has a call type and the proxy's times."""
        return self.vote(sample, lambda record: record.keys() >= _REQUIRED, "call_type, startTime and endTime")

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request, or say that this row is none: a call of another kind."""
        record = {**record, "metadata": fields.mapping(record, "metadata")}
        call_type = (fields.text(record, "call_type") or "").removeprefix("a")
        call_type = "anthropic_messages" if call_type == "nthropic_messages" else call_type
        body = _body(record)
        if call_type not in (*_TYPES, *_OTHER_CHATS) and not (call_type in _BY_BODY and body.get("messages")):
            return NotARequest(f"call of type {call_type[:40]}" if call_type else "call of no type")
        start = fields.time(record, "startTime")
        is_from_cache = (fields.find(record, ("cache_hit",))[1] or "") in ("True", "true", True)
        prompt, is_truncated = _prompt(call_type, body)
        answer = messages.answer_text(json_value(record.get("response")))
        latency = fields.elapsed_ms(start, record, "endTime")
        return Request(
            time=start,
            request_id=fields.text(record, "request_id", "id"),
            tenant=fields.text(record, *_TENANT),
            model=_model(record),
            cache_salt=fields.salt(body, "cache_salt"),
            request_type=_TYPES.get(call_type, "chat"),
            session_id=fields.text(record, "session_id", "trace_id"),
            prompt=prompt,
            is_truncated=is_truncated,
            input_tokens=fields.count(record, "prompt_tokens") or None,
            output_tokens=fields.count(record, "completion_tokens") or None,
            cached_tokens=None if is_from_cache else _cached(record),
            ttft_ms=None
            if is_from_cache
            else _ttft_ms(fields.elapsed_ms(start, record, "completionStartTime"), latency),
            latency_ms=latency,
            status=_status(record),
            answer_text=None if answer is None or _CUT in answer or _REDACTED in answer else answer,
        )


def _body(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request body: what stands in ``messages``, else what the proxy received."""
    body = fields.mapping(record, "proxy_server_request")
    body = body["body"] if isinstance(body.get("body"), dict) else body
    logged = json_value(record.get("messages"))
    if logged and isinstance(logged, list | str):
        body = {**fields.mapping(record, "model_parameters"), **body, "messages": logged}
    return body


def _prompt(call_type: str, body: Mapping[str, Any]) -> tuple[Prompt, bool]:
    """Return prompt and whether only a part of it is logged; other providers' bodies are not what an engine gets."""
    content, prompt = body.get("messages"), NO_CONTENT
    if call_type in _OTHER_CHATS:
        return NO_CONTENT, bool(content or body.get("input"))
    if call_type in ("text_completion", "embedding"):
        name = "prompt" if call_type == "text_completion" else "input"
        logged = body.get(name) or content
        prompt = prompts.completion(logged, name) if logged else NO_CONTENT
    elif isinstance(content, str):
        prompt = prompts.chat([{"role": "user", "content": content}])
    elif content:
        prompt = prompts.chat(content, body.get("tools"), body.get("chat_template_kwargs"))
    if prompt.body_json is not None and _REDACTED in prompt.body_json:
        return NO_CONTENT, True
    return prompt, prompt.body_json is not None and _CUT in prompt.body_json


def _model(record: Mapping[str, Any]) -> str | None:
    """Return the name that the engine knows: the deployment's model without its provider, else the public name."""
    model = fields.text(record, "model")
    provider = fields.text(record, "custom_llm_provider")
    if model and provider:
        model = model.removeprefix(f"{provider}/")
    return model or fields.text(record, "model_group")


def _cached(record: Mapping[str, Any]) -> int | None:
    for path in _USAGES:
        _, usage = fields.find(record, (path,))
        cached = fields.count(usage, *_CACHED) if isinstance(usage, dict) else None
        if cached is not None:
            return cached
    return None


def _ttft_ms(to_first_token: float | None, latency: float | None) -> float | None:
    """Return the time to the first token; without streaming the proxy logs the end of the call there."""
    return to_first_token if to_first_token != latency else None


def _status(record: Mapping[str, Any]) -> int | None:
    outcome = fields.text(record, "status", ("metadata", "status"))
    if outcome != "failure":
        return 200 if outcome == "success" else None
    _, code = fields.find(record, (_ERROR_CODE,))
    return int(code) if str(code).isdecimal() and 400 <= int(code) < 600 else 500
