"""Staged rows become day partitions: every request once, whatever was read before and in whatever order.

The decisions stand in ``sql/sources``; here they are run and published, again when another extraction came first.
"""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pyarrow as pa

from warmup_tasks.lake import Lake, queries
from warmup_tasks.lake.schemas import FEEDBACK, QUARANTINE, REQUESTS
from warmup_tasks.resources import sql

_MEMORY_LIMIT = "1GB"


def merge_requests(lake: Lake, day: date, staged: Sequence[str], spill_folder: str) -> tuple[str, dict[str, Any]]:
    """Merge one day's staged requests into the lake.

    Args:
        lake: where to.
        day: the UTC day.
        staged: Parquet files with the columns of ``REQUESTS``.
        spill_folder: where DuckDB may spill.

    Returns:
        The partition's reference, and the row of ``sql/sources/count_requests.sql`` with ``duplicates`` beside it.
    """
    while True:
        parent = lake.latest("requests", f"{day}")
        stored = lake.files(parent, "requests") if parent else REQUESTS.empty_table()
        with lake.connect(memory_limit=_MEMORY_LIMIT, spill_folder=spill_folder) as connection:
            queries.add_view(connection, "rows_staged", staged)
            queries.add_view(connection, "rows_stored", stored)
            ranking = queries.run(connection, sql("sources/rank_requests"), {})
            queries.add_view(connection, "ranking", ranking)
            (counts,) = queries.run(connection, sql("sources/count_requests"), {}).to_pylist()
            duplicates = ranking["is_duplicate"].combine_chunks().true_count
            merged = queries.stream(connection, sql("sources/merge_requests"), REQUESTS)
            ref = lake.publish_onto(parent, "requests", f"{day}", {"requests": merged})
        if ref is not None:
            return ref, {**counts, "duplicates": duplicates}


def merge_feedback(lake: Lake, day: date, staged: Sequence[str], spill_folder: str) -> tuple[str, int, int]:
    """Merge one day's staged feedback into the lake; return reference, rows of this log, duplicates within it."""
    while True:
        parent = lake.latest("feedback", f"{day}")
        stored = lake.files(parent, "feedback") if parent else FEEDBACK.empty_table()
        with lake.connect(memory_limit=_MEMORY_LIMIT, spill_folder=spill_folder) as connection:
            queries.add_view(connection, "rows_staged", staged)
            queries.add_view(connection, "rows_stored", stored)
            (counts,) = queries.run(connection, sql("sources/count_feedback"), {}).to_pylist()
            merged = queries.stream(connection, sql("sources/merge_feedback"), FEEDBACK)
            ref = lake.publish_onto(parent, "feedback", f"{day}", {"feedback": merged})
        if ref is not None:
            return ref, counts["kept"], counts["staged"] - counts["kept"]


def publish_quarantine(
    lake: Lake, log_digest: str, staged: Sequence[str], log: str, spill_folder: str
) -> tuple[str | None, dict[str, int]]:
    """Publish a log's quarantine, the newest reading replacing older ones; return reference and rows by reason.

    A log without faults gets a partition only where an older reading left one.
    """
    if not staged and lake.latest("quarantine", log_digest) is None:
        return None, {}
    source: pa.Table | Sequence[str] = staged or QUARANTINE.empty_table()
    with lake.connect(memory_limit=_MEMORY_LIMIT, spill_folder=spill_folder) as connection:
        queries.add_view(connection, "rows_staged", source)
        reasons = queries.run(connection, sql("sources/count_quarantine"), {}).to_pylist()
        rows = queries.stream(connection, sql("sources/list_quarantine"), QUARANTINE)
        ref = lake.publish("quarantine", log_digest, {"quarantine": rows}, {"log": log})
    return ref, {row["reason"]: row["rows"] for row in reasons}
