"""The content of a GenAI span: its prompt and answer, wherever the conventions of the day put them.

Tried in this order: ``gen_ai.input.messages`` (in attributes, or in the details event that is merged into them),
``gen_ai.prompt`` whole, ``gen_ai.prompt.0.role`` and so on, message events. System instructions and tool definitions
become part of the prompt. Form: opentelemetry.io/docs/specs/semconv/gen-ai, today and as of v1.27
to v1.36; OpenLLMetry.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from warmup_tasks.sources import messages, prompts
from warmup_tasks.sources.otel.spans import Event
from warmup_tasks.sources.prompts import NO_CONTENT, Prompt
from warmup_tasks.sources.structured import json_value

_MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CHOICE_EVENT = "gen_ai.choice"
_OTHER_OUTPUTS = ("gen_ai.output.text", "gen_ai.completion")
_COMPLETION = "text_completion"
EMBEDDINGS = "embeddings"


class Content(NamedTuple):
    """What a span says of its content; ``is_truncated``: only a part of the prompt stands in the log."""

    request_type: str
    prompt: Prompt = NO_CONTENT
    is_truncated: bool = False
    answer_text: str | None = None


def is_message_event(name: str) -> bool:
    """Say whether an event holds one message of a prompt, or a choice of the answer."""
    return name in _MESSAGE_EVENTS or name == _CHOICE_EVENT


def content_of(operation: str, attributes: Mapping[str, Any], events: Sequence[Event], is_lossy: bool) -> Content:
    """Return the content of a span.

    Args:
        operation: ``gen_ai.operation.name``, empty where unknown.
        attributes: plain values by name, those of the details event among them.
        events: in their order.
        is_lossy: the exporter dropped attributes or events.
    """
    request_type = {_COMPLETION: "completion", EMBEDDINGS: "embedding"}.get(operation, "chat")
    answer = _answer(attributes, events)
    answer_text = messages.answer_text(answer)
    logged = _input(attributes, events)
    if logged is None:
        return Content(request_type, NO_CONTENT, is_lossy, answer_text)
    if isinstance(logged, str) and logged.lstrip()[:1] in ("[", "{"):
        return Content(request_type, NO_CONTENT, True, answer_text)  # JSON that a length limit of attributes cut off
    if isinstance(logged, str):
        logged = [{"role": "user", "content": logged}]
    chat = messages.Chat()
    chat.add(logged if isinstance(logged, list) else [logged], "gen_ai.input.messages")
    instructions = json_value(attributes.get("gen_ai.system_instructions"))
    if instructions is not None:
        chat.add_instructions(instructions, "gen_ai.system_instructions")
    tools = json_value(attributes.get("gen_ai.tool.definitions")) or _indexed(attributes, "llm.request.functions")
    if tools:
        chat.add_tools([_with_schema(tool) for tool in tools] if isinstance(tools, list) else tools, "tool definitions")
    chat.expect_tools(answer)
    if request_type == "chat":
        prompt = prompts.chat(chat.messages, chat.tools)
    else:
        text = chat.messages[0].get("content") if len(chat.messages) == 1 else None
        prompt = prompts.completion(text) if isinstance(text, str) else NO_CONTENT
    return Content(request_type, prompt, is_lossy or not chat.is_complete, answer_text)


def _input(attributes: Mapping[str, Any], events: Sequence[Event]) -> Any:
    for name in ("gen_ai.input.messages", "gen_ai.prompt"):
        if attributes.get(name) is not None:
            return json_value(attributes[name])
    indexed = _indexed(attributes, "gen_ai.prompt")
    if indexed:
        return [_message(fields) for fields in indexed]
    found = [_from_event(event) for event in events if event.name in _MESSAGE_EVENTS]
    return found or None


def _answer(attributes: Mapping[str, Any], events: Sequence[Event]) -> Any:
    for name in ("gen_ai.output.messages", *_OTHER_OUTPUTS):
        if attributes.get(name) is not None:
            return json_value(attributes[name])
    indexed = _indexed(attributes, "gen_ai.completion")
    if indexed:
        return [_message(fields) for fields in indexed]
    return next((dict(event.content) for event in events if event.name == _CHOICE_EVENT), None)


def _from_event(event: Event) -> dict[str, Any]:
    kept = {name: json_value(value) for name, value in event.content.items() if "." not in name and name != "id"}
    role = {"role": _MESSAGE_EVENTS[event.name]}
    called = {"tool_call_id": event.content["id"]} if event.name == "gen_ai.tool.message" else {}
    return {**role, **kept, **called}


def _indexed(attributes: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return what stands as ``name.0.field``, ``name.1.field``; lists below it (``tool_calls.0.name``) alike."""
    found: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if not key.startswith(name + "."):
            continue
        number, _, field = key.removeprefix(name + ".").partition(".")
        if number.isdecimal() and field:
            found.setdefault(int(number), {})[field] = value
    return [found[number] for number in sorted(found)]


def _message(fields: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            **({"id": call["id"]} if "id" in call else {}),
            "type": "function",
            "function": {"name": call.get("name"), "arguments": call.get("arguments")},
        }
        for call in _indexed(fields, "tool_calls")
    ]
    content = json_value(fields.get("content"))
    is_parts = isinstance(content, list) and all(isinstance(part, dict) and "type" in part for part in content)
    message = {"role": fields.get("role"), "content": content if is_parts else fields.get("content")}
    if fields.get("tool_call_id") is not None:
        message["tool_call_id"] = fields["tool_call_id"]
    return {**message, "tool_calls": calls} if calls else message


def _with_schema(tool: Any) -> Any:
    return {name: json_value(value) for name, value in tool.items()} if isinstance(tool, dict) else tool
