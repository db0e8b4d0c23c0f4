"""Demand taken over from an earlier run, for what must be fast or happens between two nights (spec 1.1, 1.2).

A run that warms one replica or renews some answers need not read three days of requests again. Corrections that came
since are put in; nothing else changes.
"""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from warmup_tasks.demand import tables
from warmup_tasks.demand.answers import correction_of
from warmup_tasks.demand.window import read_feedback
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run

Row = dict[str, Any]
NEWEST = "newest"
LEAST_LOOKBACK_S = 3600
"""A demand of less history answers to a moment, not to a day; it is taken over by name alone."""
_TABLES = ("nodes", "paths", "reuse", "prompts", "intents", "adapters", "refused")
_HEAT = ("heat_cells", "heat_buckets", "heat_moments")


def take_over(lake: Lake, run: Run) -> tuple[str, Row]:
    """Publish ``demand/<run>`` as an earlier run left it, its intents with the corrections that hold now.

    Args:
        lake: holds the earlier demand and feedback.
        run: its request's ``demand_of`` names the run, or says ``newest``.

    Returns:
        The reference, and a small summary, as ``demand.profile`` gives them.

    Raises:
        ConfigurationError: there is no such demand.
    """
    asked = run.request.demand_of or NEWEST
    source = newest_demand(lake, run.as_of, run.request.models, run.policy.lookback_s) if asked == NEWEST else asked
    if source is None or lake.latest("demand", source) is None:
        known = f"no demand of run {asked!r} is in the lake" if asked != NEWEST else "no earlier run left its demand"
        raise ConfigurationError(f"demand_of: {known}; run nightly_warmup first")
    ref = f"demand/{source}"
    published = {name: lake.read(ref, name) for name in (*_TABLES, *_HEAT)}
    published["intents"] = _corrected(published["intents"], read_feedback(lake, run))
    summary = {**lake.meta(ref), "taken_from": source}
    return lake.publish("demand", run.run_id, published, summary), summary


def newest_demand(lake: Lake, as_of: datetime, models: Collection[str], within_s: float) -> str | None:
    """Return the newest run that worked out a demand of some models for ``within_s`` before ``as_of``, or None.

    Args:
        lake: holds the demand of runs.
        as_of: no run of later.
        models: all of them must have been served then.
        within_s: older demand counts no more, in s.
    """
    for name in sorted(lake.partitions("demand"), reverse=True):
        age_s = (as_of - _time(name)).total_seconds()
        if age_s < 0:
            continue
        meta = lake.meta(f"demand/{name}")
        is_whole = "taken_from" not in meta and meta.get("lookback_s", 0) >= LEAST_LOOKBACK_S
        if is_whole and set(models) <= set(meta["step_tokens"]):
            return name if age_s <= within_s else None
    return None


def _time(run_id: str) -> datetime:
    return datetime.strptime(run_id.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def _corrected(intents: pa.Table, corrections: list[Row]) -> pa.Table:
    rows = intents.to_pylist()
    for row in rows:
        row["correction"] = correction_of(row["tenant"], row["intent_hash"], row["member_prompts"], corrections)
    return pa.Table.from_pylist(rows, schema=tables.INTENTS)
