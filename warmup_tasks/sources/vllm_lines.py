"""The lines of a vLLM server's log, taken apart: time, message, and the parts of the messages about requests.

Written from the format strings of ``vllm/entrypoints/serve/utils/request_logger.py`` (0.32), of
``vllm/entrypoints/logger.py`` (0.6 to 0.11) and of ``vllm/engine/async_llm_engine.py`` before. What the parts mean for
the product is the business of ``vllm_log.py``.
"""

import ast
import re
from typing import Any, NamedTuple

import orjson

_HEAD_CHARACTERS = 400
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ISO = r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
_HEAD = re.compile(
    rf"^(?:{_ISO} +(?:std(?:out|err) [FP] +)?)?.{{0,200}}?\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"(?P<stamp>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? \[?[\w./<>-]+:\d+\] ?"
)
_ACCESS = re.compile(r'"(?:GET|POST|PUT|DELETE|HEAD|OPTIONS) (?P<path>[^ "]{1,200}) HTTP/[\d.]+" (?P<status>\d{3})')
_REQUEST = re.compile(r"^Received request (?P<id>\S+): (?P<rest>.*)$", re.DOTALL)
_DETAILS = re.compile(r"^Request (?P<id>\S+) details: (?P<rest>.*)$", re.DOTALL)
_BODY = re.compile(r"^Request (?P<id>\S+) JSON body: (?P<rest>.*)$", re.DOTALL)
_ANSWER = re.compile(r"^Generated response (?P<id>\S+?)(?: \(streaming complete\))?: output: (?P<rest>.*)$", re.DOTALL)
_HIT_RATE = re.compile(r"Prefix cache hit rate: (?:GPU: )?(\d{1,3}(?:\.\d+)?)%")
_PROMPT = re.compile(r"^prompt: ")
_LITERAL = re.compile(r"""None|'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\"""", re.DOTALL)
_TOKEN_IDS = re.compile(r"prompt_token_ids: (?:(\[[\d, ]*\])|None)")
_END = re.compile(r"finish_reason: (\w+)\W*$")
_ENDS = {"abort": 499, "error": 500}
_ADAPTER = re.compile(r"lora_request: LoRARequest\(lora_name=(?P<name>'[^']*'|\"[^\"]*\")")
_SETTINGS = {
    "max_log_len": re.compile(r"\bmax_log_len'?[:=] ?(\d+)"),
    "served_model": re.compile(r"\bserved_model_name'?[:=] ?\[?'([^']+)'"),
    "model": re.compile(r"(?<!served_)\bmodel'?[:=] ?'([^']+)'"),
}


class LogLine(NamedTuple):
    """A line with its times as text (``iso`` whole, ``stamp`` without year and zone; None: it has none)."""

    message: str
    stamp: str | None = None
    iso: str | None = None


class Sent(NamedTuple):
    """What a line tells of a request's content. ``is_broken``: there should be content, but it does not parse."""

    prompt: str | None = None
    token_ids: list[int] | None = None
    is_broken: bool = False


def take_apart(text: str) -> LogLine:
    """Return time and message of a line: plain, coloured, behind a container's time stamp, or wrapped in JSON."""
    iso = None
    if text.startswith("{"):
        text, iso = _unwrapped(text)
    if "\x1b" in text[:_HEAD_CHARACTERS]:
        text = _ANSI.sub("", text[:_HEAD_CHARACTERS]) + text[_HEAD_CHARACTERS:]
    head = _HEAD.match(text[:_HEAD_CHARACTERS])
    if head is None:
        return LogLine(text, None, iso)
    stamp = head["stamp"]
    if len(stamp) > len("MM-DD HH:MM:SS"):
        return LogLine(text[head.end() :], None, head["iso"] or iso or stamp)
    return LogLine(text[head.end() :], stamp, head["iso"] or iso)


def is_own(line: str) -> bool:
    """Say whether a line has the head of the server's log, or tells of a request in another head."""
    parts = take_apart(line)
    return parts.stamp is not None or request(parts.message) is not None or details(parts.message) is not None


def request(message: str) -> re.Match[str] | None:
    """Match a line that tells of a request's arrival: groups ``id`` and ``rest``."""
    return _REQUEST.match(message) if message.startswith("Received request ") else None


def details(message: str) -> re.Match[str] | None:
    """Match a DEBUG line with a request's prompt: groups ``id`` and ``rest``."""
    return _DETAILS.match(message) if message.startswith("Request ") else None


def body(message: str) -> re.Match[str] | None:
    """Match a DEBUG line with a request's JSON body: groups ``id`` and ``rest``."""
    return _BODY.match(message) if message.startswith("Request ") else None


def answer(message: str) -> re.Match[str] | None:
    """Match a line with a whole answer: groups ``id`` and ``rest``, which begins with the answer's literal."""
    return _ANSWER.match(message) if message.startswith("Generated response ") else None


def access(message: str) -> re.Match[str] | None:
    """Match an HTTP access line: groups ``path`` and ``status``."""
    return _ACCESS.search(message[:_HEAD_CHARACTERS])


def hit_rate_pct(message: str) -> float | None:
    """Return the prefix cache's hit rate that a line of statistics tells."""
    found = _HIT_RATE.search(message)
    return float(found[1]) if found else None


def settings(message: str) -> dict[str, str]:
    """Return what a line with the server's arguments tells: ``max_log_len``, ``served_model``, ``model``."""
    if "args: " not in message[:60]:
        return {}
    return {name: found[1] for name, pattern in _SETTINGS.items() if (found := pattern.search(message))}


def sent(rest: str) -> Sent:
    """Return the content in the rest of a request or details line; none where it has no ``prompt:``."""
    if not _PROMPT.match(rest):
        return Sent()
    literal = _LITERAL.match(rest, len("prompt: "))
    if literal is None:
        return Sent(is_broken=True)
    prompt = text(literal[0])
    found = next(reversed(list(_TOKEN_IDS.finditer(rest, literal.end()))), None)
    token_ids = orjson.loads(found[1]) if found and found[1] else None
    is_cut = found is None and ("prompt_token_ids" in rest[literal.end() :] or not rest[literal.end() :])
    return Sent(prompt, token_ids, is_broken=is_cut or (prompt is None and literal[0] != "None"))


def text(literal: str) -> str | None:
    """Return what a Python literal at the beginning says, or None: ``None``, no literal, or half a surrogate pair."""
    found = _LITERAL.match(literal)
    if found is None or found[0] == "None":
        return None
    try:
        value = ast.literal_eval(found[0])
        value.encode()
    except (ValueError, SyntaxError, MemoryError):
        return None
    return str(value)


def status(rest: str) -> int:
    """Return the HTTP status that an answer's end amounts to."""
    found = _END.search(rest[-_HEAD_CHARACTERS:])
    return _ENDS.get(found[1], 200) if found else 200


def answer_text(rest: str) -> str | None:
    """Return the answer's text; calls of tools are none."""
    value = text(rest)
    return None if value is None or value.startswith("[tool_calls: ") else value


def is_whole(rest: str) -> bool:
    """Say whether a request line goes on to its end, where the adapter stands."""
    return "lora_request: " in rest


def adapter(rest: str) -> str | None:
    """Return the adapter that a request line names at its end; a prompt may hold the same words."""
    found = _ADAPTER.match(rest, max(0, rest.rfind("lora_request: ")))
    return text(found["name"]) if found else None


def _unwrapped(line: str) -> tuple[str, str | None]:
    """Return message and time of a line that a container runtime or a JSON formatter wrapped."""
    try:
        value: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line, None
    for message, time in (("log", "time"), ("message", "asctime"), ("message", "timestamp")):
        if isinstance(value.get(message), str):
            moment = value.get(time)
            return value[message].rstrip("\n"), moment if isinstance(moment, str) else None
    return line, None
