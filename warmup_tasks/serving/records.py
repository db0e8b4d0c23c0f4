"""How records become Redis strings and come back; another schema version counts as absent, never as something else."""

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from warmup_tasks.items import Record

log = logging.getLogger(__name__)

CHUNK = 500
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


def chunks(rows: Sequence[RowT]) -> Iterator[Sequence[RowT]]:
    """Yield slices that are large enough for a pipeline and small enough not to hold up the server."""
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
