"""What the text of a prompt is, for people's eyes and for embedding: pure functions over ``PromptBody``.

Tokens never come from here: only the engine renders a prompt the way it caches it. Nothing here is logged.
"""

from typing import Any, NamedTuple

from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody

_STEERING_ROLES = frozenset({"system", "developer"})


class Head(NamedTuple):
    """The beginning of a prompt as text, and how many of its characters count as the head."""

    text: str
    head_characters: int


class Question(NamedTuple):
    """A single question under one system prompt and one set of tools."""

    scope_sha256: str
    text: str


def message_text(message: dict[str, Any]) -> str:
    """Return the text of a message, whether its content is a string, a list of parts, or nothing."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def head(body: PromptBody, characters: int, opening_characters: int) -> Head:
    """Return the prompt's first ``characters`` as text; its head is the system part, or at least the opening.

    Args:
        body: the prompt; token ids have no text.
        characters: upper limit of the text.
        opening_characters: what counts as the head where no system message stands first.
    """
    if body.messages is None:
        text = (body.prompt or "")[:characters]
        return Head(text, min(len(text), opening_characters))
    pieces, steering, length = [], 0, 0
    for message in body.messages:
        piece = f"{message.get('role')}\n{message_text(message)}\n"
        if message.get("role") in _STEERING_ROLES and steering == length:
            steering += len(piece)
        pieces.append(piece)
        length += len(piece)
        if length >= characters:
            break
    text = "".join(pieces)[:characters]
    return Head(text, min(len(text), max(steering, opening_characters)))


def embedding_text(body: PromptBody) -> str:
    """Return what is embedded of a prompt: the last user message of a chat, the whole of a completion prompt."""
    if body.messages is None:
        return body.prompt or ""
    asked = [message for message in body.messages if message.get("role") == "user"]
    return message_text(asked[-1]) if asked else ""


def question(body: PromptBody) -> Question | None:
    """Return the prompt as one question, or None where earlier turns belong to it or nothing is asked."""
    if body.messages is None:
        return None
    steering = [message for message in body.messages if message.get("role") in _STEERING_ROLES]
    rest = [message for message in body.messages if message.get("role") not in _STEERING_ROLES]
    if len(rest) != 1 or rest[0].get("role") != "user" or not message_text(rest[0]).strip():
        return None
    scope = {"system": steering, "tools": body.tools or [], "template_args": body.template_args or {}}
    return Question(digest(scope), message_text(rest[0]))
