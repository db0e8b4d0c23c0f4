"""A tokenizer without a vocabulary: pieces of text by a regular expression, ids by hash.

Here live splitting, joining and the chat template. Ids are the same in every process; turning ids back into text works
for pieces that this process has seen.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
import xxhash

_PIECE = re.compile(r"<\|[a-z_]+\|>| ?[^\W\d_]{1,6}| ?\d{1,3}| ?[^\w\s]{1,2}|\n{1,4}| {2,8}(?= )|.", flags=re.DOTALL)
_CACHED_TEXTS = 4096
END = "<|end|>"
_UNKNOWN = "\ufffd"
_RENDERED_APART = frozenset({"add_generation_prompt", "continue_final_message"})


class UnsupportedContentError(ValueError):
    """A message part that is not text."""


class Tokenizer:
    """Text to ids and back. Lossless: joining the pieces of a text gives the text."""

    def __init__(self, template_version: str) -> None:
        self._template_version = template_version
        self._ids = _Ids()
        self.encode = lru_cache(_CACHED_TEXTS)(self._encode)
        self.end = self._ids[END]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(self._ids.__getitem__, _PIECE.findall(text)))

    def id_of(self, piece: str) -> int:
        """Return the id of one piece."""
        return self._ids[piece]

    def text_of(self, token: int) -> str:
        """Return the piece of one id, or the replacement character for an id that this process never made."""
        return self._ids.texts.get(token, _UNKNOWN)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of the ids."""
        return "".join(map(self.text_of, tokens))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_args: Mapping[str, Any] | None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Return the ids of the rendered chat; raises ``UnsupportedContentError`` for parts that are not text.

        Tools and template arguments become tokens in the order in which they were sent.
        """
        tokens: list[int] = []
        head = "" if self._template_version == "1" else f"template {self._template_version}\n"
        arguments = {k: v for k, v in (template_args or {}).items() if k not in _RENDERED_APART}
        if tools:
            head += f"tools {orjson.dumps(list(tools)).decode()}\n"
        if arguments:
            head += f"arguments {orjson.dumps(arguments).decode()}\n"
        if head:
            tokens += self.encode(f"<|setup|>{head}{END}")
        for message in messages:
            tokens += self.encode(f"<|{_role(message)}|>{_content(message)}")
            tokens.append(self.end)
        if continue_final_message and messages:
            tokens.pop()
        elif add_generation_prompt:
            tokens += self.encode("<|assistant|>")
        return tokens


class _Ids(dict[str, int]):
    """Piece → id, made on first sight. 31 bits: two given pieces share an id once in two thousand million."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}

    def __missing__(self, piece: str) -> int:
        token = xxhash.xxh32_intdigest(piece.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF
        self[piece] = token
        self.texts.setdefault(token, piece)
        return token


def _role(message: Mapping[str, Any]) -> str:
    return re.sub(r"[^a-z_]", "_", str(message.get("role", "user")).lower())


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(map(_part_text, content))
    rest = {k: message[k] for k in ("name", "tool_call_id", "tool_calls") if message.get(k)}
    return (content or "") + (f"\n{orjson.dumps(rest).decode()}" if rest else "")


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    raise UnsupportedContentError("this model takes text parts only")
