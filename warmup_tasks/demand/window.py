"""The requests that a plan may see: [as_of - lookback, as_of), under the fleet's names, never a row later.

Here the lake's day partitions become one Arrow table. What a request is worth is said elsewhere.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.lake.schemas import REQUESTS
from warmup_tasks.lake.store import Lake
from warmup_tasks.resources import sql
from warmup_tasks.runs import Run

_SERVED = pa.schema(
    [("logged_model", pa.string()), ("logged_adapter", pa.string()), ("model", pa.string()), ("adapter", pa.string())]
)


@dataclass(frozen=True, slots=True)
class Window:
    """The served requests of the lookback, sorted by time (``sql/demand/window.sql``), and who was not served."""

    requests: pa.Table
    not_served: dict[str, int]
    span_s: float
    observed_s: float


def read_window(lake: Lake, run: Run, fleet: FleetFile) -> Window:
    """Return the lookback's requests, filtered as the run's request asks.

    A model name that the log uses for an adapter (the engine serves adapters under their own names) becomes the
    adapter on its base model. ``observed_s`` is how much history there is, from the first request on; ``span_s``, over
    which rates are taken, is never so little that a forecast multiplies what it saw.
    """
    since = run.as_of - timedelta(seconds=run.policy.lookback_s)
    source = days(lake, "requests", since, run.as_of) or REQUESTS.empty_table()
    bounds = {"since": since, "as_of": run.as_of}
    logged = lake.query(sql("demand/models"), {"requests": source}, bounds).to_pylist()
    served, not_served = _served(logged, fleet)
    filters = {"tenants": run.request.tenants, "models": run.request.models}
    inputs = {"requests": source, "served": pa.Table.from_pylist(served, schema=_SERVED)}
    requests = lake.query(sql("demand/window"), inputs, bounds | filters)
    observed_s = (run.as_of - requests["time"][0].as_py()).total_seconds() if requests.num_rows else 0.0
    least = min(run.policy.lookback_s, run.policy.horizon_s)
    return Window(requests, not_served, max(float(least), observed_s), observed_s)


def read_feedback(lake: Lake, run: Run) -> list[dict[str, Any]]:
    """Return the corrections that hold at as_of (``sql/demand/corrections.sql``), whatever day they came on."""
    source = days(lake, "feedback", datetime(1970, 1, 1, tzinfo=UTC), run.as_of)
    if not source:
        return []
    rows: list[dict[str, Any]] = lake.query(
        sql("demand/corrections"), {"feedback": source}, {"as_of": run.as_of}
    ).to_pylist()
    return rows


def days(lake: Lake, dataset: str, since: datetime, until: datetime) -> list[str]:
    """Return the references of a data set's days from ``since`` to ``until``, its table named like the data set."""
    first, last = f"{since:%Y-%m-%d}", f"{until:%Y-%m-%d}"
    return [f"{dataset}/{day}:{dataset}" for day in lake.partitions(dataset) if first <= day <= last]


def _served(logged: list[dict[str, Any]], fleet: FleetFile) -> tuple[list[dict[str, Any]], dict[str, int]]:
    served: list[dict[str, Any]] = []
    not_served: dict[str, int] = {}
    for row in logged:
        model, adapter = fleet.served_model(row["logged_model"]), row["logged_adapter"]
        named = fleet.adapter(row["logged_model"] or "")
        if model is None and named is not None:
            model, adapter = named.base_model, named.name
        if model is None:
            name = row["logged_model"] or "(no model)"
            not_served[name] = not_served.get(name, 0) + row["requests"]
        else:
            keys = {name: row[name] for name in ("logged_model", "logged_adapter")}
            served.append({**keys, "model": model, "adapter": adapter})
    return served, not_served
