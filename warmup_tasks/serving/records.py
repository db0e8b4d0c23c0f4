"""How records become Redis strings and come back; another schema version counts as absent, never as something else."""

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from warmup_tasks.items import Record

log = logging.getLogger(__name__)

CHUNK = 500
NEWER = """
local function is_newer(standing, as_of, epoch)
  if not standing then return false end
  if epoch and epoch ~= (string.match(standing, '"epoch":"([^"]*)"') or '') then return false end
  local its_as_of = string.match(standing, '"as_of":"([^"Z]*)Z"')
  return its_as_of ~= nil and its_as_of > as_of
end
"""
"""Lua for scripts: is a stored record of a newer plan, and of the same epoch where one is given? ``as_of`` as
:func:`instant` writes it: a stored time has at most as many digits, so an equal one never counts as newer."""
RecordT = TypeVar("RecordT", bound=Record)
RowT = TypeVar("RowT")


def decode(raw: Any, record: type[RecordT], schema_version: int) -> RecordT | None:
    """Return a stored record; None where there is none, or none of this schema version."""
    if raw is None:
        return None
    try:
        found = record.model_validate_json(raw)
    except ValidationError:
        log.warning("a stored %s does not have schema version %d: counts as absent", record.__name__, schema_version)
        return None
    return found if getattr(found, "schema_version", schema_version) == schema_version else None


def life_ms(end: datetime, now: datetime) -> int:
    """Return the TTL of something that ends at ``end``, in ms and at least 1."""
    return max(1, round((end - now).total_seconds() * 1000))


def instant(time: datetime) -> str:
    """Return a time as text whose order is that of times, UTC, for comparing in Redis."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def chunks(rows: Sequence[RowT]) -> Iterator[Sequence[RowT]]:
    """Yield slices that are large enough for a pipeline and small enough not to hold up the server."""
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
