"""Prompts rebuilt exactly as they were sent: the order of keys, tools and template arguments kept (spec 1.2).

Here a logged request body becomes the JSON of ``items.PromptBody`` and its digest. No format's field names.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import prompt_digest
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.fields import wrong_type


class Prompt(NamedTuple):
    """A prompt's stored form; both None where the log holds no content, or content that is not one prompt."""

    body_json: str | None = None
    sha256: str | None = None


NO_CONTENT = Prompt()


def chat(messages: Any, tools: Any = None, template_args: Any = None) -> Prompt:
    """Return the prompt of a chat request; an empty list of messages is no content."""
    _objects("messages", messages)
    if tools is not None:
        _objects("tools", tools)
    if template_args is not None and not isinstance(template_args, dict):
        raise wrong_type("template arguments", template_args, "an object")
    if not messages:
        return NO_CONTENT
    body = {"messages": messages, "tools": tools, "template_args": template_args}
    return _prompt(messages, {name: value for name, value in body.items() if value is not None})


def completion(prompt: Any, name: str = "prompt") -> Prompt:
    """Return the prompt of a completion or embedding request.

    Args:
        prompt: text, token ids, or a list with one of these; a list of several is several prompts and no content here.
        name: of the field, for the fault.
    """
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _prompt(prompt, {"prompt": prompt}) if prompt else NO_CONTENT
    if not isinstance(prompt, list):
        raise wrong_type(name, prompt, "text or a list")
    if all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in prompt):
        return _prompt(prompt, {"token_ids": prompt}) if prompt else NO_CONTENT
    if all(isinstance(part, str | list) for part in prompt):
        return NO_CONTENT
    raise wrong_type(name, prompt, "text, token ids or a list of prompts")


def _objects(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise wrong_type(name, value, "a list")
    for position, part in enumerate(value):
        if not isinstance(part, dict):
            raise wrong_type(f"{name}[{position}]", part, "an object")


def _prompt(content: str | Sequence[Any], body: dict[str, Any]) -> Prompt:
    try:
        sha256 = prompt_digest(content, body.get("tools"), body.get("template_args"))
    except (ConfigurationError, RecursionError):
        raise BadRecordError(Fault.NO_CANONICAL_FORM, "a number beyond 2^53, or nesting too deep") from None
    return Prompt(orjson.dumps(body).decode(), sha256)
