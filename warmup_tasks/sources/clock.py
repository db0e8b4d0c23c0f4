"""Clocks that need help to become UTC: relative ones, and ones that leave out the year.

Absolute time stamps are the business of ``fields.py``.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.sources import fields
from warmup_tasks.sources.faults import BadRecordError, Fault

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ABSOLUTE_FROM_S = 946_684_800  # the year 2000: no trace runs for thirty years, so a value beyond counts from 1970
_LIMIT_S = 7_258_118_400  # the year 2200
_STAMP_CHARACTERS = len("MM-DD HH:MM:SS")


def since(epoch: datetime, record: Mapping[str, Any], name: str, per_s: int) -> datetime:
    """Return ``epoch`` plus a field's value, to the microsecond.

    Args:
        epoch: where the clock starts; a value that can only be absolute counts from 1970 instead.
        record: holds the field.
        name: of the field.
        per_s: its units a second.

    Raises:
        BadRecordError: absent, negative, or beyond the year 2200.
    """
    value = fields.number(record, name)
    if value is None:
        raise BadRecordError(Fault.NO_TIME, f"looked for {name}")
    if value / per_s >= _LIMIT_S:
        raise BadRecordError(Fault.BAD_TIME, f"{name} lies beyond the year 2200")
    start = _UNIX_EPOCH if value / per_s >= _ABSOLUTE_FROM_S else epoch.astimezone(UTC)
    return start + timedelta(microseconds=round(value * (10**6 / per_s)))


class LocalClock:
    """Reads times that leave out the zone, and perhaps the year, as UTC, given the zone and in which years they lie."""

    def __init__(self, zone: str, not_before: datetime | None, not_after: datetime | None) -> None:
        """Set the clock.

        Args:
            zone: IANA name of the zone in which the clock runs.
            not_before: the year is the first in which the moment is not before this.
            not_after: else it is the last in which the moment is not after this, plus a day for clocks that go wrong.

        Raises:
            ConfigurationError: there is no such zone.
        """
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ConfigurationError(f"zone: {zone!r} is no IANA time zone; write for instance Europe/Berlin") from None
        self._not_before = not_before
        self._not_after = None if not_after is None else not_after + timedelta(days=1)

    def read(self, text: str, name: str) -> datetime:
        """Return a whole time in UTC; one with a zone of its own keeps that.

        Raises:
            BadRecordError: it is no time; ``name`` says of what.
        """
        try:
            moment = datetime.fromisoformat(text.replace(",", "."))
        except ValueError:
            return fields.parse_time(text, name)
        return fields.parse_time((moment if moment.tzinfo else moment.replace(tzinfo=self._zone)).isoformat(), name)

    def read_yearless(self, stamp: str) -> datetime:
        """Return ``MM-DD HH:MM:SS`` in UTC; raises ``BadRecordError`` where it is none or nothing tells the year."""
        anchor = self._not_before or self._not_after
        if anchor is None:
            raise BadRecordError(Fault.NO_TIME, "the time stamp has no year, and neither file nor epoch tells it")
        step = 1 if self._not_before else -1
        first = anchor.year - step
        for year in range(first, first + step * 10, step):  # a 29 February may need eight steps
            moment = self._in(year, stamp)
            if moment is not None and (moment >= anchor if self._not_before else moment <= anchor):
                return moment
        raise BadRecordError(Fault.BAD_TIME, "no day and time of the form MM-DD HH:MM:SS")

    def _in(self, year: int, stamp: str) -> datetime | None:
        try:
            naive = datetime.strptime(f"{year}-{stamp[:_STAMP_CHARACTERS]}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007
        except ValueError:
            return None
        return naive.replace(tzinfo=self._zone).astimezone(UTC)
