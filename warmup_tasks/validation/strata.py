"""Strata as a whole: a stratum that is slower warm, or whose answers differ too often, fails with all its items.

Pure. The sample speaks for its stratum (spec 6.6): what is wrong with most of the sample is wrong with the rest.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from warmup_tasks.items import Evidence, Reason, Residency
from warmup_tasks.validation.intervals import Gain, gain_of


class StratumResult(NamedTuple):
    """One stratum: its measured gain (None without a pair), and why it fails, "" where it does not."""

    stratum: str
    items: int
    gain: Gain | None
    reason: str


def judge_strata(evidence: Sequence[Evidence], *, max_failure_share: float, seed: int) -> dict[str, StratumResult]:
    """Return stratum → result.

    Args:
        evidence: of the planned items.
        max_failure_share: of the sampled answers that may differ.
        seed: of the run, for the intervals.
    """
    members: dict[str, list[Evidence]] = defaultdict(list)
    for row in evidence:
        members[row.stratum].append(row)
    return {name: _judge(name, rows, max_failure_share, seed) for name, rows in sorted(members.items())}


def _judge(name: str, rows: Sequence[Evidence], max_failure_share: float, seed: int) -> StratumResult:
    pairs = [
        (row.ttft_cold_ms, row.ttft_warm_ms)
        for row in rows
        if row.is_sampled
        and row.residency is Residency.HIT
        and row.ttft_cold_ms is not None
        and row.ttft_warm_ms is not None
    ]
    gain = gain_of(pairs, seed=seed)
    compared = [row.is_answer_equal for row in rows if row.is_answer_equal is not None]
    if gain is not None and gain.is_slower:
        reason: str = Reason.SLOWER_THAN_COLD
    elif compared and compared.count(False) / len(compared) > max_failure_share:
        reason = Reason.STRATUM_FAILED
    else:
        reason = ""
    return StratumResult(name, len(rows), gain, reason)
