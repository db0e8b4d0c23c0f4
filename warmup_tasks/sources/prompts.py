"""Prompts rebuilt exactly as they were sent: the order of keys, tools and template arguments kept (spec 1.2).

Here a logged request body becomes the JSON of ``items.PromptBody`` and its digest. No format's field names.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import orjson

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import prompt_digest
from warmup_tasks.sources.faults import BadRecordError, Fault
from warmup_tasks.sources.fields import wrong_type

_WHY_NONE = "a number that JSON cannot carry, half a character, or nesting too deep"


class Prompt:
    """A prompt as it is stored, both forms None where the log holds no content, or content that is not one prompt."""

    __slots__ = ("_body", "_sha256", "body_json")

    def __init__(self, body: Mapping[str, Any] | None = None) -> None:
        """Take the fields of a ``PromptBody``, in their order.

        Raises:
            BadRecordError: they cannot be written as JSON.
        """
        self._body, self._sha256 = body, None if body is None else ""
        self.body_json: str | None = None
        if body is not None:
            try:
                self.body_json = orjson.dumps(body).decode()
            except orjson.JSONEncodeError:
                raise BadRecordError(Fault.NO_CANONICAL_FORM, _WHY_NONE) from None

    @classmethod
    def stored(cls, body_json: str | None, sha256: str | None) -> Self:
        """Return a prompt of which both forms are known."""
        prompt = cls()
        prompt.body_json, prompt._sha256 = body_json, sha256
        return prompt

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prompt) and self.body_json == other.body_json

    def __hash__(self) -> int:
        return hash(self.body_json)

    @property
    def sha256(self) -> str | None:
        """The prompt's digest, made when it is first asked for.

        Raises:
            BadRecordError: the prompt has no canonical form.
        """
        body = self._body
        if self._sha256 == "" and body is not None:
            content = body["messages"] if "messages" in body else body.get("prompt", body.get("token_ids"))
            try:
                self._sha256 = prompt_digest(content, body.get("tools"), body.get("template_args"))
            except ConfigurationError:
                raise BadRecordError(Fault.NO_CANONICAL_FORM, _WHY_NONE) from None
        return self._sha256


NO_CONTENT = Prompt()


class PromptColumn(ABC):
    """Prompts that were never objects."""

    @property
    @abstractmethod
    def bodies(self) -> Any:
        """The prompts as they are stored, an Arrow array."""

    @property
    @abstractmethod
    def digests(self) -> list[str | None]:
        """Their digests."""

    @abstractmethod
    def __getitem__(self, row: int) -> Prompt:
        """Return one."""


class PromptNames(NamedTuple):
    """Where a format has plain prompts: a chat under ``messages``, or a text under ``prompt``, each by itself.

    Attributes:
        messages: name of the chat messages, which go with tools and template arguments; None: there are no chats.
        prompt: name of a prompt that is one text.
        tools: name of the tool definitions.
        template_args: name of the template arguments.
        others: names under which other content may stand; a record with any is not plain.
    """

    messages: str | None = "messages"
    prompt: str = "prompt"
    tools: str = "tools"
    template_args: str = "template_args"
    others: tuple[str, ...] = ()


def chat(messages: Any, tools: Any = None, template_args: Any = None) -> Prompt:
    """Return the prompt of a chat request; an empty list of messages is no content."""
    _check_objects("messages", messages)
    body = {"messages": messages}
    if tools is not None:
        _check_objects("tools", tools)
        body["tools"] = tools
    if template_args is not None:
        if not isinstance(template_args, dict):
            raise wrong_type("template arguments", template_args, "an object")
        body["template_args"] = template_args
    return Prompt(body) if messages else NO_CONTENT


def completion(prompt: Any, name: str = "prompt") -> Prompt:
    """Return the prompt of a completion or embedding request.

    Args:
        prompt: text, token ids, or a list with one of these; a list of several is several prompts and no content here.
        name: of the field, for the fault.
    """
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return Prompt({"prompt": prompt}) if prompt else NO_CONTENT
    if not isinstance(prompt, list):
        raise wrong_type(name, prompt, "text or a list")
    if set(map(type, prompt)) <= {int} and min(prompt, default=0) >= 0:
        return Prompt({"token_ids": prompt}) if prompt else NO_CONTENT
    if all(isinstance(part, str | list) for part in prompt):
        return NO_CONTENT
    raise wrong_type(name, prompt, "text, token ids or a list of prompts")


def _check_objects(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise wrong_type(name, value, "a list")
    if set(map(type, value)) <= {dict}:
        return
    for position, part in enumerate(value):
        if not isinstance(part, dict):
            raise wrong_type(f"{name}[{position}]", part, "an object")
