"""The command that backfills nights: ``airflow backfill create`` with dates that mean what they seem to mean.

Airflow takes a bare ``--to-date`` as midnight, so the last night would be missing, and refuses a range that lies in the
future. Nothing is run here, and Airflow is not imported.
"""

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Literal, NamedTuple

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.runs import wishes_of
from warmup_tasks.settings import RunPolicy

DAG_ID = "nightly_warmup"
NIGHT_AT = time(2, tzinfo=UTC)
"""When a night's data interval begins; the DAG's schedule says the same."""

Reprocess = Literal["none", "failed", "completed"]


class Backfill(NamedTuple):
    """A command, the nights that it covers by the dates that Airflow calls them, and what is left out or not warmed.

    ``warmed`` are the nights whose horizon has not passed: the others re-plan and report, and touch no cache.
    """

    command: list[str]
    nights: list[date]
    left_out: list[date]
    warmed: list[date]


def backfill(
    first: date,
    last: date,
    *,
    now: datetime,
    reprocess: Reprocess = "none",
    conf: Mapping[str, Any] | None = None,
    is_oldest_first: bool = False,
    max_active_runs: int = 1,
    is_dry_run: bool = False,
) -> Backfill:
    """Return the command that backfills the nights from ``first`` to ``last``, both included.

    Args:
        first: logical date of the first night, as Airflow shows it: the day on which its data interval begins.
        last: of the last night.
        now: nights whose data interval has not ended by then are left out.
        reprocess: what becomes of nights that have a run: nothing, again where it failed, again where it has ended.
        conf: fields of the run's form for every night; None leaves cleared runs their own.
        is_oldest_first: the order; by default the newest night goes first, since it alone warms.
        max_active_runs: nights under way at a time.
        is_dry_run: only list the runs that would be made.

    Raises:
        ConfigurationError: the range is empty or in the future, or a field of the conf is refused.
    """
    if first > last:
        raise ConfigurationError(f"--from {first} lies after --to {last}")
    asked = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    nights = [night for night in asked if _ends(night) < now]
    if not nights:
        raise ConfigurationError(f"--from {first}: that night's data is complete at {_ends(first).isoformat()} only")
    command = ["airflow", "backfill", "create", "--dag-id", DAG_ID]
    command += ["--from-date", datetime.combine(nights[0], NIGHT_AT).isoformat()]
    command += ["--to-date", datetime.combine(nights[-1], NIGHT_AT).isoformat()]
    command += ["--reprocess-behavior", reprocess, "--max-active-runs", str(max_active_runs)]
    command += [] if is_oldest_first else ["--run-backwards"]
    command += ["--dag-run-conf", _checked(conf)] if conf else []
    command += ["--dry-run"] if is_dry_run else []
    horizon = timedelta(seconds=RunPolicy().horizon_s)
    warmed = [night for night in nights if _ends(night) + horizon > now]
    return Backfill(command, nights, asked[len(nights) :], warmed)


def explained(output: str) -> str | None:
    """Return what Airflow's refusal means, from what it printed, or None where it speaks for itself."""
    if "AlreadyRunningBackfill" in output:
        return (
            f"a backfill of {DAG_ID} is still active, and Airflow allows one: wait for its end, which Airflow notices "
            "up to 30 s late, or cancel it in the UI"
        )
    return "Airflow does not know the DAG yet: wait until it is parsed" if "DagNotFound" in output else None


def _ends(night: date) -> datetime:
    return datetime.combine(night + timedelta(days=1), NIGHT_AT)


def _checked(conf: Mapping[str, Any]) -> str:
    wishes_of(conf, "--set")
    if conf.get("as_of") is not None:
        raise ConfigurationError("--set as_of: every night of a backfill plans from its own time")
    return json.dumps(conf, sort_keys=True, default=str)


def lines(found: Backfill) -> list[str]:
    """Return for people what a backfill does, night by night."""
    told = [f"{len(found.nights)} nights, {found.nights[0]} to {found.nights[-1]}"]
    if found.left_out:
        told.append(f"left out, their data is not complete: {', '.join(map(str, found.left_out))}")
    if found.warmed:
        warmed = ", ".join(map(str, found.warmed))
        told.append(f"planned anew and warmed: {warmed}; the others planned anew and reported")
    else:
        told.append("planned anew and reported; nothing is warmed, since the time that they plan for has passed")
    return told
