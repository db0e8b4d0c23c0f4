"""Which partitions of the lake are old: those of runs, by the time in the run's id. Requests, feedback, tokens stay."""

import re
from datetime import UTC, datetime

from warmup_tasks.lake.store import Lake

OF_RUNS = (
    "demand",
    "evidence",
    "extractions",
    "held_back",
    "marks",
    "plan",
    "receipts",
    "replay",
    "replicas",
    "tuning_nights",
    "twins",
)
_RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]+")


def old_partitions(lake: Lake, older_than: datetime) -> list[tuple[str, str]]:
    """Return (dataset, partition) of the runs that planned for a time before ``older_than``, sorted."""
    return [
        (dataset, partition)
        for dataset in OF_RUNS
        for partition in lake.partitions(dataset)
        if (planned_for := _as_of(partition)) is not None and planned_for < older_than
    ]


def collect(lake: Lake, older_than: datetime, *, is_dry_run: bool = False) -> list[str]:
    """Drop the partitions of old runs; return them as ``dataset/partition``."""
    old = old_partitions(lake, older_than)
    if not is_dry_run:
        for dataset, partition in old:
            lake.drop(dataset, partition)
    return [f"{dataset}/{partition}" for dataset, partition in old]


def _as_of(partition: str) -> datetime | None:
    found = _RUN_ID.match(partition)
    return datetime.strptime(found[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) if found else None
