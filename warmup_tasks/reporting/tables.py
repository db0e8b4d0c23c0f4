"""The tables behind the report's plots: pairs of TTFT, hits by minute, the heat map of the last day, trials.

Numbers and ids only. Each table has the columns that its schema here names; a table that cannot be made is absent.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

import pyarrow as pa

from warmup_tasks.demand.heat import WINDOW_S
from warmup_tasks.lake.store import Lake
from warmup_tasks.reporting import figures
from warmup_tasks.reporting.collect import RunData, collect, gather
from warmup_tasks.resources import sql
from warmup_tasks.runs import Run

TTFT_PAIRS = pa.schema(
    [
        ("kind", pa.string()),
        ("stratum", pa.string()),
        ("replica", pa.string()),
        ("cold_ms", pa.float64()),
        ("warm_ms", pa.float64()),
    ]
)
HITS_BY_MINUTE = pa.schema(
    [
        ("arm", pa.string()),
        ("minute", pa.int64()),  # whole minutes since as_of
        ("hit_blocks", pa.int64()),
        ("full_blocks", pa.int64()),
        ("n_requests", pa.int64()),
    ]
)
HEAT_MAP = pa.schema(
    [
        ("bucket", pa.int32()),
        ("slot", pa.int32()),  # since one day before as_of
        ("n_requests", pa.int64()),
    ]
)
HEAT_SLOT_S = 900
HEAT_SLOTS = 96


def report_tables(lake: Lake, run: Run) -> Mapping[str, pa.Table]:
    """Return ``ttft_pairs``, ``hits_by_minute``, ``heat_map``, ``tuning_trials`` and ``tuning_curves``.

    A table is absent where nothing was measured.
    """
    data = collect(lake, run)
    made = {
        "ttft_pairs": pa.Table.from_pylist(figures.ttft_pairs(data), schema=TTFT_PAIRS),
        "hits_by_minute": _hits_by_minute(lake, run, data),
        "heat_map": _heat_map(lake, run),
        **tuning_tables(lake, run),
    }
    return {name: table for name, table in made.items() if table is not None and table.num_rows}


def tuning_tables(lake: Lake, run: Run) -> dict[str, pa.Table]:
    """Return ``tuning_trials`` and ``tuning_curves`` of a run; nothing where it tuned nothing."""
    made = {f"tuning_{name}": gather(lake, "tuning_nights", run, name) for name in ("trials", "curves")}
    return {name: table for name, table in made.items() if table is not None}


def _hits_by_minute(lake: Lake, run: Run, data: RunData) -> pa.Table | None:
    end = run.as_of + timedelta(seconds=max(run.request.measure_window_s, 1))
    days = [day for day in _days(run.as_of, end) if lake.latest("requests", day)]
    replays = [table for table in (data.replay_cold, data.replay_warm) if table is not None]
    if not replays or not days:
        return None
    every = pa.concat_tables(replays)
    tables = {"replay": every, "requests": [f"requests/{day}:requests" for day in days]}
    parameters = {"arms": len(replays), "as_of": run.as_of}
    return lake.query(sql("reporting/hits_by_minute"), tables, parameters).cast(HITS_BY_MINUTE)


def _heat_map(lake: Lake, run: Run) -> pa.Table | None:
    cells = gather(lake, "demand", run, "heat_cells")
    if cells is None:
        return None
    parameters = {"window_s": WINDOW_S, "slot_s": HEAT_SLOT_S, "slots": HEAT_SLOTS}
    return lake.query(sql("reporting/heat_map"), {"heat_cells": cells}, parameters).cast(HEAT_MAP)


def _days(start: datetime, end: datetime) -> list[str]:
    span = (end.date() - start.date()).days
    return [f"{start.date() + timedelta(days=n):%Y-%m-%d}" for n in range(span + 1)]
