"""Turns an engine's refusals into the library's errors, without letting prompt text through.

A validation message of the engine may quote the request, so only messages of a known form are passed on; everything
else is named by its type and parameter. Knows status codes and messages of vLLM's surface, sends nothing.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from warmup_tasks.errors import ConfigurationError, RejectItemError, RetryLaterError, WarmupError
from warmup_tasks.items import Reason

_RETRY_STATUS = {408, 409, 425, 429}
_LONGEST_MESSAGE = 200
_KNOWN_MESSAGES = re.compile(
    r"This model's maximum context length|Parameter 'cache_salt' must|max_tokens must|temperature must"
    r"|Token id \d+ is out of vocabulary|The model `[^`]*` does not exist|\"auto\" tool choice requires"
    r"|Loading lora |The lora adapter |Call to add_lora |LoRA rank "
)


def error_of(status: int, content: bytes, what: str, api_key_env: str | None = None) -> WarmupError:
    """Return the error for one refused call.

    Args:
        status: HTTP status.
        content: body of the answer.
        what: the call in words, such as ``completion on http://host``; never prompt text.
        api_key_env: name of the variable that holds the key, for the message of a 401.
    """
    if status in (401, 403):
        where = f"the key in ${api_key_env} is refused" if api_key_env else "name its key's variable in api_key_env"
        return ConfigurationError(f"{what}: HTTP {status}: {where}")
    if status in _RETRY_STATUS or status >= 500:
        return RetryLaterError(f"{what}: HTTP {status}: {message_of(content)}")
    reason = Reason.TOO_LONG if "maximum context length" in _error(content)[0] else Reason.ENGINE_REFUSED
    return RejectItemError(reason, f"{what}: HTTP {status}: {message_of(content)}")


def adapter_error(status: int, content: bytes, what: str, api_key_env: str | None = None) -> WarmupError:
    """Return the error for a refused adapter call.

    A 404 of the router means that runtime updates are switched off, a 404 of the handler that the path or name is
    unknown; a 500 that names the rank is a refusal for good, not a failing server.
    """
    message, _, _ = _error(content)
    if is_route_missing(status, content):
        return RejectItemError(
            Reason.ADAPTER_UPDATES_OFF, f"{what}: start the engine with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
        )
    if status == 500 and re.search(r"rank|add_lora", message):
        return RejectItemError(Reason.ENGINE_REFUSED, f"{what}: {message[:_LONGEST_MESSAGE]}")
    return error_of(status, content, what, api_key_env)


def is_route_missing(status: int, content: bytes) -> bool:
    """Say whether a 404 comes from the router: the endpoint does not exist on this server."""
    if status != 404:
        return False
    body = _json(content)
    return not isinstance(body, Mapping) or "error" not in body


def is_already_loaded(status: int, content: bytes) -> bool:
    """Say whether an adapter load was refused because the name is taken."""
    return status == 400 and "already been loaded" in _error(content)[0]


def message_of(content: bytes) -> str:
    """Return the engine's message where its form is known to carry no prompt, else only its type and parameter."""
    message, kind, parameter = _error(content)
    if _KNOWN_MESSAGES.match(message):
        return message[:_LONGEST_MESSAGE]
    named = [part for part in (kind, f"parameter {parameter}" if parameter else "") if part]
    return ", ".join(named) or "no message"


def _error(content: bytes) -> tuple[str, str, str]:
    """Return message, type and parameter of an OpenAI-style error body, empty strings where it has none."""
    body = _json(content)
    error = body.get("error", body) if isinstance(body, Mapping) else {}
    if not isinstance(error, Mapping):
        return "", "", ""
    parameter = error.get("param")
    return (
        str(error.get("message") or ""),
        str(error.get("type") or "")[:60],
        parameter[:60] if isinstance(parameter, str) else "",
    )


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
