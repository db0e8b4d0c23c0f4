"""When most is asked for: the busiest hour of the day, by the requests in the lake. No forecast, no decision."""

from datetime import datetime, timedelta

from warmup_tasks.demand.window import days
from warmup_tasks.lake.store import Lake
from warmup_tasks.resources import sql

HISTORY = timedelta(days=7)


def peak_hour(lake: Lake, as_of: datetime) -> int | None:
    """Return the hour, UTC, that most requests of the week before ``as_of`` fall into; None: there are none."""
    since = as_of - HISTORY
    source = days(lake, "requests", since, as_of)
    if not source:
        return None
    rows = lake.query(sql("demand/peak"), {"requests": source}, {"since": since, "as_of": as_of}).to_pylist()
    return int(rows[0]["hour"]) if rows else None
