"""What a local run must know of a log before it starts engines: whose names it uses, and where to split its time.

Reads the lake's request days; starts and plans nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from warmup_tasks.errors import GiveUpError
from warmup_tasks.fleet_file import TenantSpec
from warmup_tasks.identity import SaltMode
from warmup_tasks.lake import Lake
from warmup_tasks.resources import sql

LONG_LOG = timedelta(hours=36)
NIGHT = time(2, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Names and time span of a log; the busiest model and adapters first."""

    models: list[str]
    adapters: list[str]
    tenants: list[TenantSpec]
    first: datetime
    last: datetime

    def as_of(self) -> datetime:
        """Return a plan time with history before it and requests after it.

        Logs of several days are split at their last 02:00 UTC, shorter ones at half their time.
        """
        if self.last - self.first < LONG_LOG:
            return (self.first + (self.last - self.first) / 2).replace(microsecond=0)
        night = datetime.combine(self.last.date(), NIGHT)
        return night if night < self.last else night - timedelta(days=1)


def traffic_of(lake: Lake, days: Sequence[str]) -> Traffic:
    """Return what the requests of these lake days say.

    Raises:
        GiveUpError: there is no usable request.
    """
    refs = [f"requests/{day}:requests" for day in days]
    if not refs:
        raise GiveUpError("the log holds no usable request: `warmup extract --log … --json` says why")
    rows = lake.query(sql("local/traffic"), {"requests": refs}, {}).to_pylist()
    names = {
        kind: [row["name"] for row in rows if row["kind"] == kind and row["name"]] for kind in ("model", "adapter")
    }
    tenants = [
        TenantSpec(name=row["name"], salt_mode=SaltMode.AS_LOGGED if row["salted"] else SaltMode.NONE)
        for row in rows
        if row["kind"] == "tenant" and row["name"]
    ]
    return Traffic(
        names["model"],
        names["adapter"],
        tenants,
        min(row["first_time"] for row in rows),
        max(row["last_time"] for row in rows),
    )
