"""Typed access to the fields of a logged record, and one UTC time line.

Here live the rules that all formats share: a field that is absent or null is None, a field of another type is a fault
that names field and type. Nothing here knows a format.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import check_salt
from warmup_tasks.sources.faults import BadRecordError, Fault

Path = str | tuple[str | int, ...]
"""Name of a field, or names from the outside in; a number is a position in a list (``columns.Rows.texts_or`` only)."""
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNITS_PER_S = ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (10**20, 10**9))  # below the bound, so many a second


def find(record: Mapping[str, Any], paths: Sequence[Path]) -> tuple[str, Any]:
    """Return name and value of the first path that is present and not null, else ``("", None)``."""
    for path in paths:
        value: Any = record
        for part in (path,) if isinstance(path, str) else path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return path if isinstance(path, str) else ".".join(map(str, path)), value
    return "", None


def wrong_type(name: str, value: Any, wanted: str) -> BadRecordError:
    """Return the fault of a field that has another type than wanted."""
    return BadRecordError(Fault.BAD_TYPE, f"{name} is {_JSON_TYPES.get(type(value), 'unknown')}, not {wanted}")


def text(record: Mapping[str, Any], *paths: Path) -> str | None:
    """Return the first of the text fields that is not empty; whole numbers count as text (ids often are)."""
    for path in paths:
        name, value = find(record, [path])
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if value is not None and not isinstance(value, str):
            raise wrong_type(name, value, "text")
        if value:
            return value
    return None


def one_of(record: Mapping[str, Any], path: Path, choices: Sequence[str]) -> str | None:
    """Return a text field that is one of the choices."""
    value = text(record, path)
    if value is not None and value not in choices:
        raise BadRecordError(Fault.BAD_VALUE, f"{path} must be one of {', '.join(choices)}")
    return value


def number(record: Mapping[str, Any], *paths: Path, scale: float = 1.0) -> float | None:
    """Return a field as a finite number ≥ 0, times ``scale``; digits in a string count."""
    name, value = find(record, paths)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise wrong_type(name, value, "a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, value, "a number")
    if not math.isfinite(value) or value < 0:
        raise BadRecordError(Fault.BAD_VALUE, f"{name} is negative or not finite")
    return float(value) * scale


def count(record: Mapping[str, Any], *paths: Path) -> int | None:
    """Return a field as a whole number ≥ 0 that fits into 63 bits, exact where the log has it as such."""
    name, found = find(record, paths)
    if type(found) is int and 0 <= found < 2**63:
        return found
    value = number(record, *paths)
    if value is None:
        return None
    if not value.is_integer() or value >= 2**63:
        raise BadRecordError(Fault.BAD_VALUE, f"{name} is no whole number")
    return int(value)


def small_count(record: Mapping[str, Any], *paths: Path) -> int | None:
    """Return a field as a whole number ≥ 0 that fits into 31 bits."""
    value = count(record, *paths)
    if value is not None and value >= 2**31:
        raise BadRecordError(Fault.BAD_VALUE, f"{find(record, paths)[0]} is too large")
    return value


def flag(record: Mapping[str, Any], *paths: Path) -> bool:
    """Return a field as a truth value; absent is false."""
    name, value = find(record, paths)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_type(name, value, "true or false")
    return value


def mapping(record: Mapping[str, Any], *paths: Path) -> dict[str, Any]:
    """Return a field as an object, also where it stands as JSON text; absent is empty."""
    name, value = find(record, paths)
    if isinstance(value, str) and value:
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise wrong_type(name, value, "an object") from None
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise wrong_type(name, value, "an object")
    return value


def hashes(record: Mapping[str, Any], *paths: Path) -> list[int] | None:
    """Return a field as a list of block hashes: whole numbers below 2^64, exact."""
    name, value = find(record, paths)
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type(name, value, "a list")
    for position, part in enumerate(value):
        if type(part) is not int or not 0 <= part < 2**64:
            raise BadRecordError(Fault.BAD_VALUE, f"{name}[{position}] is no unsigned 64-bit number")
    return value


def salt(record: Mapping[str, Any], *paths: Path) -> str | None:
    """Return the cache salt as logged; an empty one counts as none, since no engine takes it."""
    value = text(record, *paths)
    if value is None:
        return None
    try:
        check_salt(value)
    except ConfigurationError:
        raise BadRecordError(Fault.BAD_SALT, f"{len(value)} characters") from None
    return value


def tenant(record: Mapping[str, Any], *paths: Path) -> str | None:
    """Return a field that names the tenant; empty is refused, since it would be nobody's and everybody's."""
    name, value = find(record, paths)
    if value == "":
        raise BadRecordError(Fault.EMPTY_TENANT, f"{name}: leave the field out, or name the tenant")
    return text(record, *paths)


def time(record: Mapping[str, Any], *paths: Path) -> datetime:
    """Return a field as a UTC time, to the microsecond; raises when absent or not understood."""
    name, value = find(record, paths)
    if value is None or value == "":
        raise BadRecordError(
            Fault.NO_TIME, "looked for " + ", ".join(p if isinstance(p, str) else ".".join(map(str, p)) for p in paths)
        )
    return parse_time(value, name)


def elapsed_ms(start: datetime, record: Mapping[str, Any], *paths: Path) -> float | None:
    """Return the milliseconds from ``start`` to a time; None where it is absent, or earlier by a clock that was set."""
    name, value = find(record, paths)
    if value is None or value == "":
        return None
    milliseconds = (parse_time(value, name) - start) / timedelta(milliseconds=1)
    return milliseconds if milliseconds >= 0 else None


def parse_time(value: Any, name: str) -> datetime:
    """Return a time in UTC.

    Args:
        value: seconds, milli-, micro- or nanoseconds since 1970 (told apart by their size), as number or digits, or ISO
            8601 with or without zone (without: UTC).
        name: of the field, for the fault.
    """
    if isinstance(value, str):
        moment = _from_text(value.strip(), name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        moment = _from_number(value, name)
    else:
        raise wrong_type(name, value, "a time")
    if not EARLIEST <= moment < LATEST:
        raise BadRecordError(Fault.BAD_TIME, f"{name} lies outside 2000 to 2199")
    return moment


def _from_number(value: float, name: str) -> datetime:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRecordError(Fault.BAD_TIME, f"{name} is not finite")
    for bound, per_s in UNITS_PER_S:
        if 0 < value < bound:
            is_exact = isinstance(value, int)
            microseconds = int(value) * 10**6 // per_s if is_exact else round(value * (10**6 / per_s))
            return datetime.fromtimestamp(microseconds // 10**6, UTC).replace(microsecond=microseconds % 10**6)
    raise BadRecordError(Fault.BAD_TIME, f"{name} is no time since 1970 in s, ms, µs or ns")


def _from_text(value: str, name: str) -> datetime:
    try:
        return _from_number(float(value) if "." in value or "e" in value.lower() else int(value), name)
    except ValueError:
        pass
    iso = value.removesuffix(" UTC").replace("z", "Z")
    try:
        moment = datetime.fromisoformat(iso)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRecordError(Fault.BAD_TIME, f"{name} is text, but no ISO 8601 time") from None


_JSON_TYPES: dict[type, str] = {
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
