"""Langfuse: observations, as the UI exports a trace, as the blob storage export writes rows, as the public API pages.

Generations and embeddings are requests; spans, tools, traces and scores are none. ``input`` is what the integration
logged: chat messages, a request body, or text; what is none of these counts for timing only. Times are computed from
times, since latencies stand in seconds or milliseconds, by the age of the integration. Form: langfuse.com/docs, blob
storage export field reference, and the public API's observations.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from warmup_tasks.sources import fields, messages, prompts
from warmup_tasks.sources.base import Mapped, NotARequest, Recognition, Request, Sample
from warmup_tasks.sources.nests import Nest
from warmup_tasks.sources.prompts import NO_CONTENT, Prompt
from warmup_tasks.sources.structured import StructuredSource, json_value

_START, _END = ("startTime", "start_time"), ("endTime", "end_time")
_FIRST_TOKEN, _TTFT = ("completionStartTime", "completion_start_time"), ("timeToFirstToken", "time_to_first_token")
_MODEL = ("model", "providedModelName", "provided_model_name")
_TRACE, _USER, _SESSION = ("traceId", "trace_id"), ("userId", "user_id"), ("sessionId", "session_id")
_USAGE = ("usageDetails", "usage_details", "usage")
_CACHED = ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens", "prompt_details.cache_read")
_TOOLS = ("toolDefinitions", "tool_definitions")
_CALLS = ("toolCalls", "tool_calls")
_LOGGED_TOOLS = ("attributes", "gen_ai.tool.definitions")
_OF_TRACE = (
    ("userId", "trace.userId"),
    ("sessionId", "trace.sessionId"),
    ("userId", "userId"),
    ("sessionId", "sessionId"),
)


class LangfuseSource(StructuredSource):
    """Reads Langfuse exports."""

    name = "langfuse"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "export the field group 'io', and let the integration log the request's messages as input",
        "ttft_ms": "set completion_start_time on streamed generations",
    }
    nests: ClassVar[tuple[Nest, ...]] = (Nest("observations.item", _OF_TRACE), Nest("data.item"))

    def recognise(self, sample: Sample) -> Recognition:
        """A file is in this format when it holds observations, traces or scores."""
        return self.vote(sample, lambda record: _kind(record) is not None, "Langfuse observations, traces or scores")

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request of a generation or an embedding; anything else is none."""
        kind = _kind(record) or "unknown"
        if kind not in ("GENERATION", "EMBEDDING"):
            return NotARequest(f"Langfuse {kind.lower()[:20]}")
        start = fields.time(record, *_START)
        usage = fields.mapping(record, *_USAGE)
        content = _Content.of(record, kind)
        to_first_token = fields.elapsed_ms(start, record, *_FIRST_TOKEN)
        cached = fields.count(usage, *_CACHED)
        return Request(
            time=start,
            request_id=fields.text(record, "id"),
            tenant=fields.text(record, *_USER),
            model=fields.text(record, *_MODEL),
            request_type=content.request_type,
            session_id=fields.text(record, *_SESSION) or fields.text(record, *_TRACE),
            prompt=content.prompt,
            is_truncated=content.is_truncated,
            input_tokens=_input_tokens(usage),
            output_tokens=fields.count(usage, "output", "completionTokens"),
            cached_tokens=cached,
            ttft_ms=fields.number(record, *_TTFT, scale=1000.0) if to_first_token is None else to_first_token,
            latency_ms=fields.elapsed_ms(start, record, *_END),
            status=500 if record.get("level") == "ERROR" else None,
            answer_text=messages.answer_text(json_value(record.get("output"))),
        )


class _Content(NamedTuple):
    request_type: str
    prompt: Prompt = NO_CONTENT
    is_truncated: bool = False

    @classmethod
    def of(cls, record: Mapping[str, Any], kind: str) -> "_Content":
        logged = json_value(record.get("input"))
        if isinstance(logged, dict) and isinstance(logged.get("prompt"), str | list):
            logged = logged["prompt"]
        if kind == "EMBEDDING":
            return cls("embedding", prompts.completion(logged, "input") if isinstance(logged, str) else NO_CONTENT)
        if isinstance(logged, str):
            return cls("completion" if logged else "unknown", prompts.completion(logged, "input"))
        body = logged if isinstance(logged, dict) else {"messages": logged}
        if not _are_messages(body.get("messages")):
            return cls("chat" if body.get("messages") else "unknown", NO_CONTENT, logged not in (None, [], {}))
        chat = messages.Chat()
        sent, appended = _part_tools(body["messages"])
        chat.add([_without_framework(message) for message in sent], "input")
        tools: Any = body.get("tools") or appended or _logged_tools(record)
        if tools:
            chat.add_tools(tools, "tools")
        chat.expect_tools(json_value(record.get("output")))
        has_tools = bool(json_value(fields.find(record, _TOOLS)[1]) or json_value(fields.find(record, _CALLS)[1]))
        is_whole = chat.is_complete and (chat.tools is not None or not has_tools)
        return cls("chat", prompts.chat(chat.messages, chat.tools, body.get("chat_template_kwargs")), not is_whole)


def _kind(record: Mapping[str, Any]) -> str | None:
    """Return an observation's type, ``trace`` or ``score``; None for what Langfuse did not write."""
    has_trace = any(name in record for name in _TRACE)
    if has_trace and isinstance(record.get("type"), str) and any(name in record for name in _START):
        return str(record["type"])
    if "timestamp" in record and ("bookmarked" in record or "observations" in record):
        return "trace"
    if has_trace and {"source", "value"} <= record.keys() and record.keys() & {"dataType", "data_type"}:
        return "score"
    return None


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, dict) and "role" in part for part in value)


def _part_tools(logged: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Part messages from the tool definitions that the LangChain integration appends as messages of role tool."""
    is_tool = [
        message["role"] == "tool" and isinstance(message.get("content"), dict) and "function" in message["content"]
        for message in logged
    ]
    sent = [message for message, is_one in zip(logged, is_tool, strict=True) if not is_one]
    return sent, [message["content"] for message, is_one in zip(logged, is_tool, strict=True) if is_one]


def _without_framework(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with the tool calls where chat requests have them; LangChain logs them beside the message."""
    more = message.get("additional_kwargs")
    if not isinstance(more, dict):
        return message
    kept = {name: value for name, value in message.items() if name != "additional_kwargs"}
    calls = more.get("tool_calls")
    return {**kept, "content": kept.get("content") or None, "tool_calls": calls} if calls else kept


def _logged_tools(record: Mapping[str, Any]) -> list[Any] | None:
    """Return tools that stand in the metadata as the request had them; other renderings of them prove nothing."""
    metadata = json_value(record.get("metadata"))
    tools = json_value(fields.find(metadata, (_LOGGED_TOOLS,))[1]) if isinstance(metadata, dict) else None
    return tools if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools) else None


def _input_tokens(usage: Mapping[str, Any]) -> int | None:
    """Return the prompt's tokens: cached, audio and image tokens are counted beside ``input``, not within it."""
    parts = [fields.count(usage, (name,)) for name in usage if name == "input" or name.startswith("input_")]
    known = [part for part in parts if part is not None]
    return sum(known) if known else fields.count(usage, "promptTokens")
