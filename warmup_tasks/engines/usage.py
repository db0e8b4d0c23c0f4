"""What an engine's usage says of cached tokens: a number, or nothing. Nothing is never 0 (spec 6.5b)."""

from collections.abc import Mapping
from typing import Any


def cached_tokens(usage: Mapping[str, Any] | None) -> int | None:
    """Return the cached prompt tokens that a usage object reports, or None where it does not say.

    Args:
        usage: the ``usage`` object of an OpenAI-style answer. Absent, without ``prompt_tokens_details``, with a null
            in its place, and with a null ``cached_tokens`` all mean the same: the engine did not say.
    """
    details = (usage or {}).get("prompt_tokens_details")
    if not isinstance(details, Mapping):
        return None
    return whole_number(details.get("cached_tokens"))


def whole_number(value: Any) -> int | None:
    """Return a JSON number as int, None for anything else; booleans are no numbers."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
