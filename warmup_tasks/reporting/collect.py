"""One run's data sets, gathered from the lake: which partitions belong to a run, and what is absent.

Here live reading and joining by names. No figure is computed here; a data set that no task wrote is None, never empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from warmup_tasks.errors import ContractError
from warmup_tasks.lake.columns import rows_of, uncollected
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunData:
    """The data sets of one run; None where no task wrote any. Grain and columns as in ``docs/contracts.md``.

    ``quarantine`` holds the evidence of what is not ready with its last reason, ``publication`` how the run was judged,
    ``tuning`` the account of its tuning, ``held_back`` why it warmed nothing.
    """

    extraction: Row | None
    replicas: pa.Table | None
    plan: pa.Table | None
    plan_meta: Row | None
    twins: pa.Table | None
    receipts: pa.Table | None
    evidence: pa.Table | None
    probe_meta: list[Row]
    marks: pa.Table | None
    quarantine: pa.Table | None
    strata: pa.Table | None
    publication: Row | None
    replay_cold: pa.Table | None
    replay_warm: pa.Table | None
    tuning: Row | None
    held_back: Row | None


def collect(lake: Lake, run: Run) -> RunData:
    """Return every data set that the tasks of ``run`` published, the newest version of each partition."""
    return RunData(
        extraction=_meta(lake, "extractions", run.run_id),
        replicas=gather(lake, "replicas", run, "replicas"),
        plan=gather(lake, "plan", run, "plan"),
        plan_meta=_meta(lake, "plan", run.run_id),
        twins=gather(lake, "twins", run, "twins"),
        receipts=gather(lake, "receipts", run, "receipts"),
        evidence=gather(lake, "evidence", run, "evidence"),
        probe_meta=[lake.meta(f"evidence/{name}") for name in partitions_of(lake, "evidence", run)],
        marks=gather(lake, "marks", run, "marks"),
        quarantine=gather(lake, "marks", run, "quarantine"),
        strata=gather(lake, "marks", run, "strata"),
        publication=_meta(lake, "marks", run.run_id),
        replay_cold=gather(lake, "replay", run, "replay", ending=".cold"),
        replay_warm=gather(lake, "replay", run, "replay", ending=".warm"),
        tuning=_meta(lake, "tuning_nights", run.run_id),
        held_back=_meta(lake, "held_back", run.run_id),
    )


def partitions_of(lake: Lake, dataset: str, run: Run, ending: str = "") -> list[str]:
    """Return the partitions of ``dataset`` that belong to ``run``: its id alone, or its id, a dot and more."""
    return [
        name
        for name in lake.partitions(dataset, run.run_id)
        if (name == run.run_id or name.startswith(f"{run.run_id}.")) and name.endswith(ending)
    ]


def gather(lake: Lake, dataset: str, run: Run, table: str, ending: str = "") -> pa.Table | None:
    """Return one table over all partitions of a run, or None where there is no partition."""
    parts = [lake.read(f"{dataset}/{name}", table) for name in partitions_of(lake, dataset, run, ending)]
    return pa.concat_tables(parts) if parts else None


def rows(table: pa.Table | None, columns: Sequence[str]) -> list[Row]:
    """Return the named columns as rows; an absent table gives none.

    Raises:
        ContractError: a column is missing.
    """
    if table is None:
        return []
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ContractError(f"columns {', '.join(missing)} are missing; the table has {', '.join(table.column_names)}")
    with uncollected():
        return list(rows_of(table.select(list(columns))))


def _meta(lake: Lake, dataset: str, partition: str) -> Row | None:
    return lake.meta(f"{dataset}/{partition}") if lake.latest(dataset, partition) else None
