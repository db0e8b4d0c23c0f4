"""When the made-up service is asked: regions with their own mornings, quiet nights and weekends, sharp peaks.

Here live moments only; what is asked then is the business of ``conversations.py``.
"""

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple


class Region(NamedTuple):
    """A part of the world: its clock, and how much it asks."""

    utc_offset_h: float
    requests_per_h: float
    rush_at_utc_h: float | None = None
    rush_per_min: float = 0.0


REGIONS = {
    "asia": Region(8, 42.0, rush_at_utc_h=2.0, rush_per_min=24.0),
    "europe": Region(1, 36.0),
    "americas": Region(-6, 30.0),
}
"""Asia's offices open at 10:00 their time, 02:00 UTC: the rush that a nightly warm-up is for."""

_RUSH_FADES_IN_MIN = 6.0
_WEEKEND_SHARE = 0.35


def starts(random: Random, region: Region, begin: datetime, end: datetime, scale: float) -> Iterator[datetime]:
    """Yield the moments in [begin, end) at which somebody begins to ask, in order, to the millisecond."""
    minute = begin
    while minute < end:
        number = _poisson(random, scale * _per_minute(region, minute))
        offsets_ms = sorted(random.randrange(60_000) for _ in range(number))
        yield from (moment for ms in offsets_ms if (moment := minute + timedelta(milliseconds=ms)) < end)
        minute += timedelta(minutes=1)


def _per_minute(region: Region, moment: datetime) -> float:
    local = moment + timedelta(hours=region.utc_offset_h)
    hour = local.hour + local.minute / 60
    shape = 0.06 + math.exp(-(((hour - 10) / 1.8) ** 2)) + 0.7 * math.exp(-(((hour - 15) / 2.2) ** 2))
    rate = region.requests_per_h / 60 * shape
    if region.rush_at_utc_h is not None:
        since_min = (moment.hour - region.rush_at_utc_h) * 60 + moment.minute
        if since_min >= 0:
            rate += region.rush_per_min * math.exp(-since_min / _RUSH_FADES_IN_MIN)
    return rate * (_WEEKEND_SHARE if local.weekday() >= 5 else 1.0)


def _poisson(random: Random, mean: float) -> int:
    limit, number, product = math.exp(-mean), 0, random.random()
    while product > limit:
        number += 1
        product *= random.random()
    return number
