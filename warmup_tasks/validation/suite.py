"""The evidence as a whole, held against a Great Expectations suite (spec 6.6).

What is expected stands as data in ``include/expectations/evidence.json``; here evidence becomes the frame it speaks
of, one row an item and arm. Column checks pass on an empty frame, so the suite counts the rows of every arm. What
follows from a failure is decided in ``publish.py``.
"""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from warmup_tasks.identity import STORE
from warmup_tasks.items import Evidence, ItemKind
from warmup_tasks.resources import include_path

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "arm",
    "item_id",
    "replica",
    "kind",
    "stratum",
    "residency",
    "is_ready",
    "is_identity_ok",
    "ttft_ms",
    "cached_tokens",
    "expected_cached_tokens",
)


class SuiteResult(NamedTuple):
    """Whether all expectations were met; of those that were not, what each one says."""

    is_met: bool
    broken: list[str]
    checked: int


def check_evidence(evidence: Sequence[Evidence], planned_rows: int) -> SuiteResult:
    """Hold the evidence of a run against the suite.

    Args:
        evidence: one row a planned item, the run's verdict in it.
        planned_rows: how many rows that must be.
    """
    has_prefixes = any(row.kind is ItemKind.KV_PREFIX and row.is_ready for row in evidence)
    parameters = {"planned_rows": planned_rows, "min_pairs": int(has_prefixes)}
    return check_frame(frame_of(evidence), parameters)


def frame_of(evidence: Sequence[Evidence]) -> "pd.DataFrame":
    """Return one row an item and arm: every item, and the cold, warm and control arm of the sample."""
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    for row in evidence:
        rows.append(_row("item", row, None))
        if not row.is_sampled:
            continue
        if row.ttft_cold_ms is not None:
            rows.append(_row("cold", row, row.ttft_cold_ms))
        if row.ttft_warm_ms is not None:
            rows.append(_row("warm", row, row.ttft_warm_ms))
        if row.is_control_missed is not None:
            rows.append(_row("control", row, None))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def check_frame(frame: "pd.DataFrame", parameters: dict[str, int]) -> SuiteResult:
    """Validate a frame in a context of its own, so that two validations in one process do not meet.

    Args:
        frame: with :data:`COLUMNS`.
        parameters: ``planned_rows`` and ``min_pairs``, the least number of rows in the arms of the sample.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    definition = json.loads(include_path("expectations/evidence.json").read_text(encoding="utf-8"))
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("frames").add_dataframe_asset("evidence")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
    suite = gx.ExpectationSuite(name=definition["name"], expectations=definition["expectations"])
    result = batch.validate(suite, expectation_parameters=parameters)
    broken = [_says(one) for one in result.results if not one.success]
    return SuiteResult(bool(result.success), broken, len(result.results))


def _says(result: Any) -> str:
    configuration = result.expectation_config
    return str((configuration.meta or {}).get("says") or configuration.type)


def _row(arm: str, row: Evidence, ttft_ms: float | None) -> tuple[Any, ...]:
    return (
        arm,
        row.item_id,
        row.replica or STORE,
        str(row.kind),
        row.stratum,
        str(row.residency),
        row.is_ready,
        row.is_identity_ok,
        ttft_ms,
        row.cached_tokens,
        row.expected_cached_tokens,
    )
