"""Messages of the GenAI conventions (a role and its parts) become chat messages, as they were sent to the engine.

What cannot be rebuilt (images, thoughts, tools without their schema) is said, never guessed: such a prompt counts as
partly logged. Form: opentelemetry.io/docs/specs/semconv/gen-ai, the schemas of input messages and tool definitions.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from warmup_tasks.sources.fields import wrong_type

_TEXT, _CALL, _RESPONSE = "text", "tool_call", "tool_call_response"


class Chat:
    """A chat prompt that is being rebuilt; ``is_complete`` is false as soon as a part of it is not in the log."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] | None = None
        self.is_complete = True

    def add(self, messages: Any, name: str) -> None:
        """Append messages; each has parts, or content as chat messages have it."""
        if not isinstance(messages, list):
            raise wrong_type(name, messages, "a list")
        for position, message in enumerate(messages):
            if not isinstance(message, dict):
                raise wrong_type(f"{name}[{position}]", message, "an object")
            if isinstance(message.get("parts"), list):
                self.messages.extend(self._from_parts(message, f"{name}[{position}]"))
            else:
                self.messages.append({key: value for key, value in message.items() if "." not in key})

    def add_instructions(self, instructions: Any, name: str) -> None:
        """Put system instructions (text, or text parts) in front, where they are not the first message already."""
        parts = instructions if isinstance(instructions, list) else [instructions]
        parts = [{"type": _TEXT, "content": part} if isinstance(part, str) else part for part in parts]
        system = next(self._from_parts({"role": "system", "parts": parts}, name))
        if system["content"] is None:
            return
        first = self.messages[0] if self.messages else {}
        if first.get("role") not in ("system", "developer") or first.get("content") != system["content"]:
            self.messages.insert(0, system)

    def add_tools(self, definitions: Any, name: str) -> None:
        """Take tool definitions, flat or as chat requests have them; a name alone is not what was sent."""
        if not isinstance(definitions, list):
            raise wrong_type(name, definitions, "a list")
        self.tools = []
        for position, definition in enumerate(definitions):
            if not isinstance(definition, dict):
                raise wrong_type(f"{name}[{position}]", definition, "an object")
            if isinstance(definition.get("function"), dict):
                self.tools.append(definition)
                continue
            inner = {key: value for key, value in definition.items() if key != "type"}
            self.tools.append({"type": definition.get("type", "function"), "function": inner})
            self.is_complete &= definition.get("type", "function") == "function" and len(inner) > 1

    def expect_tools(self, answer: Any = None) -> None:
        """Note that tools were sent, when the messages or the answer use some and no definition was logged."""
        uses = any(message.get("tool_calls") or message.get("role") == "tool" for message in self.messages)
        self.is_complete &= self.tools is not None or not (uses or calls_tools(answer))

    def _from_parts(self, message: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        responses: list[dict[str, Any]] = []
        for position, part in enumerate(message["parts"]):
            if not isinstance(part, dict):
                raise wrong_type(f"{name}.parts[{position}]", part, "an object")
            kind = part.get("type")
            if kind == _TEXT and isinstance(part.get("content"), str):
                texts.append(part["content"])
            elif kind == _CALL:
                calls.append(_call(part))
            elif kind == _RESPONSE:
                content = _as_text(part.get("response", part.get("result")))
                responses.append({"role": "tool", "tool_call_id": part.get("id"), "content": content})
            else:
                self.is_complete = False
        if texts or calls or not responses:
            own = {key: message[key] for key in ("role", "name") if message.get(key) is not None}
            own["content"] = _content(texts)
            if calls:
                own["tool_calls"] = calls
            yield own
        yield from responses


def calls_tools(answer: Any) -> bool:
    """Say whether output messages, or one of them, call a tool."""
    outputs = answer if isinstance(answer, list) else [answer]
    return any(
        output.get("tool_calls") or any(_kind(part) == _CALL for part in output.get("parts") or ())
        for output in outputs
        if isinstance(output, dict)
    )


def answer_text(answer: Any) -> str | None:
    """Return the text of the first output message (parts, chat message, or completion choice), or None."""
    first = answer[0] if isinstance(answer, list) and answer else answer
    if isinstance(first, dict):
        choices = first.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            first = choices[0]
        if isinstance(first.get("message"), dict):
            first = first["message"]
        if isinstance(first.get("parts"), list):
            texts = [part["content"] for part in first["parts"] if _kind(part) == _TEXT and _is_text(part)]
            return "".join(texts) or None
        first = first.get("content") or first.get("text")
    return first if isinstance(first, str) and first else None


def _call(part: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))}
    identity = {"id": part["id"]} if part.get("id") is not None else {}
    return {**identity, "type": "function", "function": function}


def _content(texts: list[str]) -> Any:
    if len(texts) > 1:
        return [{"type": _TEXT, "text": text} for text in texts]
    return texts[0] if texts else None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("content"), str)
