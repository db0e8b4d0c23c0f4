"""By when a run has to be ready: the time that was asked for, else the forecast peak less the lead time. Pure."""

import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from warmup_tasks.errors import ConfigurationError

READY_BY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?:\s+(\S+))?")
_LEAST_HISTORY = timedelta(days=1)


class Deadline(NamedTuple):
    """When a run has to be ready, and why then."""

    at: datetime
    basis: str


def deadline_of(ready_by: str, as_of: datetime, peak_at: datetime | None, lead_time_s: int) -> Deadline | None:
    """Return a run's deadline, or None where nobody asked and no peak is known.

    Args:
        ready_by: local time of day with a zone behind it, ``07:30 Europe/Berlin``; without one UTC; empty: by the peak.
        as_of: the deadline is the first such time after it.
        peak_at: when the busiest hour of the horizon is forecast to begin; None: the log is too short.
        lead_time_s: the golden parameter: how long before the peak.

    Raises:
        ConfigurationError: ``ready_by`` is no such time.
    """
    if ready_by:
        return Deadline(_next(ready_by, as_of), f"asked for: {ready_by}")
    if peak_at is None:
        return None
    return Deadline(peak_at - timedelta(seconds=lead_time_s), f"{lead_time_s / 60:g} min before the forecast peak")


def peak_of(hours: Mapping[datetime, int], as_of: datetime, horizon_s: int) -> datetime | None:
    """Return when the busiest hour of a horizon is forecast to begin, or None for less than a day of history.

    Args:
        hours: beginning of each hour of the history, UTC → requests in it. An hour of the horizon is expected to see
            what the same hours of the day saw on average; of equals the first.
        as_of: where the horizon begins.
        horizon_s: its length.
    """
    if not hours or as_of - min(hours) < _LEAST_HISTORY:
        return None
    by_hour = Counter[int]()
    for hour, requests in hours.items():
        by_hour[hour.hour] += requests
    first = as_of.astimezone(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    ahead = [first + timedelta(hours=n) for n in range(min(24, max(1, horizon_s // 3600)))]
    return max(ahead, key=lambda hour: (by_hour[hour.hour], -hour.timestamp()))


def _next(ready_by: str, as_of: datetime) -> datetime:
    found = READY_BY.fullmatch(ready_by.strip())
    if found is None:
        raise ConfigurationError(f"ready_by: {ready_by!r} is no time of day; write for instance 07:30 Europe/Berlin")
    try:
        zone = ZoneInfo(found[3] or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigurationError(f"ready_by: no time zone is called {found[3]!r}") from None
    local = as_of.astimezone(zone)
    for day in (local.date(), local.date() + timedelta(days=1)):
        moment = datetime.combine(day, time(int(found[1]), int(found[2])), zone).astimezone(UTC)
        if moment > as_of:
            return moment
    raise ConfigurationError(f"ready_by: {ready_by!r} does not exist on the day after {as_of.isoformat()}")
