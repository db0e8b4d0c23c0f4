"""The arithmetic behind the summary: fates of items, percentiles, ratios, intervals, token accounting.

Pure functions from one run's tables to numbers. What was not measured is None, never 0; no text of any prompt passes
through here.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from warmup_tasks.items import Arm, GainBasis, ItemKind, Outcome, Reason, Residency
from warmup_tasks.reporting.advice import HELD_BACK, NO_EVIDENCE, NO_RECEIPT, NOT_PUBLISHED, advice, plain
from warmup_tasks.reporting.collect import Row, RunData, rows


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one plan row: plan, receipt, evidence and mark joined on (item_id, replica)."""

    item_id: str
    kind: str
    replica: str | None
    tenant: str | None
    adapter: str | None
    subtree_root: str | None
    prompt_tokens: int
    unique_tokens: int
    heat: float
    expected_uses: float
    is_chosen: bool
    is_held_out: bool
    outcome: str | None
    residency: str | None
    is_ready: bool
    step: str
    reason: str

    @property
    def is_planned(self) -> bool:
        """Chosen, and not left cold on purpose."""
        return self.is_chosen and not self.is_held_out

    @property
    def is_skipped(self) -> bool:
        """Not tried in warming, for a reason outside the item."""
        return self.outcome == Outcome.SKIPPED

    @property
    def is_validated(self) -> bool:
        """Warmed, and validation reached a verdict, hit or miss."""
        return self.outcome == Outcome.WARMED and self.residency in (Residency.HIT, Residency.MISS)

    @property
    def is_unverified(self) -> bool:
        """Warmed, and the engine did not say whether it is resident; never ready."""
        return self.outcome == Outcome.WARMED and self.residency == Residency.UNVERIFIED and not self.is_ready

    @property
    def is_rejected(self) -> bool:
        """Refused or failed in warming, or seen by validation and not passed."""
        return self.outcome in (Outcome.REJECTED, Outcome.FAILED) or (self.is_validated and not self.is_ready)


_PLAN = (
    "item_id", "kind", "replica", "tenant", "adapter", "subtree_root", "prompt_tokens", "unique_tokens", "heat",
    "expected_uses", "is_chosen", "reason",
)  # fmt: skip


def fates(data: RunData) -> list[Fate]:
    """Return one fate a plan row. Ready means a published mark; before publication, what the evidence says."""
    receipts = _by_item(rows(data.receipts, ("item_id", "replica", "outcome", "reason")))
    evidence = _by_item(rows(data.evidence, ("item_id", "replica", "residency", "is_ready", "reason")))
    last = _by_item(rows(data.quarantine, ("item_id", "replica", "is_ready", "reason")))
    marks = _by_item(rows(data.marks, ("item_id", "replica")))
    found = []
    for row in rows(data.plan, _PLAN):
        key = (row["item_id"], row["replica"])
        receipt, seen = receipts.get(key, {}), evidence.get(key, {}) | last.get(key, {})
        is_ready = key in marks if data.marks is not None else bool(seen.get("is_ready"))
        is_held_out = row["reason"] == Reason.HOLDOUT
        step, reason = _why(row.pop("reason"), row["is_chosen"] and not is_held_out, receipt, seen, is_ready)
        if reason == NO_RECEIPT and data.held_back is not None and data.held_back["why"]:
            step, reason = "planning", HELD_BACK
        found.append(
            Fate(
                **row,
                is_held_out=is_held_out,
                outcome=receipt.get("outcome"),
                residency=seen.get("residency"),
                is_ready=is_ready,
                step=step,
                reason=reason,
            )
        )
    return found


def _by_item(found: Iterable[Row]) -> dict[tuple[str, str | None], Row]:
    return {(row["item_id"], row["replica"]): row for row in found}


def _why(plan_reason: str, is_planned: bool, receipt: Row, seen: Row, is_ready: bool) -> tuple[str, str]:
    if is_ready:
        return "", ""
    if not is_planned:
        return "planning", plan_reason
    if receipt and receipt["outcome"] != Outcome.WARMED:
        return "warming", receipt["reason"]
    if seen:
        return "validation", seen["reason"] or NOT_PUBLISHED
    return ("validation", NO_EVIDENCE) if receipt else ("warming", NO_RECEIPT)


def counts(data: RunData, found: Sequence[Fate]) -> dict[str, int | None]:
    """Return the fields of ``ItemCounts`` but ``refused``; None for what a missing data set leaves open."""
    planned = [o for o in found if o.is_planned]
    has_evidence = data.evidence is not None
    settled = [o for o in planned if o.is_ready or o.is_skipped or o.is_rejected or o.is_unverified]
    return {
        "planned": _known(data.plan, len(planned)),
        "held_out": _known(data.plan, sum(o.is_held_out for o in found)),
        "warmed": _known(data.receipts, sum(o.outcome == Outcome.WARMED for o in planned)),
        "validated": _known(data.evidence, sum(o.is_validated for o in planned)),
        "ready": _known(data.marks, sum(o.is_ready for o in planned)),
        "skipped": _known(data.receipts, sum(o.is_skipped for o in planned)),
        "rejected": _known(data.receipts, sum(o.is_rejected for o in planned)),
        "unverified": _known(data.evidence, sum(o.is_unverified for o in planned)),
        "unaccounted": len(planned) - len(settled) if has_evidence and data.receipts is not None else None,
    }


def refused(data: RunData) -> dict[str, int]:
    """Return how many candidates planning refused, by kind, by the plan's own account."""
    return {
        kind: sum(n for reason, n in told.items() if reason != Reason.HOLDOUT)
        for kind, told in (data.plan_meta or {}).get("reasons", {}).items()
    }


def _known(table: pa.Table | None, value: int) -> int | None:
    return None if table is None else value


def reasons(data: RunData, found: Sequence[Fate]) -> list[Row]:
    """Return why items are not ready, most frequent first: reason, step, kind, n_items, advice.

    What planning refused is counted by the plan's own account: not every refused candidate has a row.
    """
    tally = Counter((plain(o.reason), o.step, o.kind) for o in found if o.reason and o.is_planned)
    for kind, told in (data.plan_meta or {}).get("reasons", {}).items():
        tally.update({(plain(reason), "planning", kind): n for reason, n in told.items()})
    ordered = sorted(tally.items(), key=lambda entry: (-entry[1], entry[0]))
    return [
        {"reason": reason, "step": step, "kind": kind, "n_items": n, "advice": advice(reason)}
        for (reason, step, kind), n in ordered
    ]


def resident_tokens(data: RunData, found: Sequence[Fate]) -> tuple[int | None, int | None]:
    """Return (planned, ready) tokens that KV prefixes occupy, each shared block counted once."""
    prefixes = [o for o in found if o.kind == ItemKind.KV_PREFIX and o.is_planned]
    planned = sum(o.unique_tokens for o in prefixes)
    ready = sum(o.unique_tokens for o in prefixes if o.is_ready)
    return _known(data.plan, planned), _known(data.marks, ready)


def ttft_pairs(data: RunData) -> list[Row]:
    """Return the sampled items that have both a cold and a warm TTFT: kind, stratum, replica, cold_ms, warm_ms."""
    columns = ("kind", "stratum", "replica", "is_sampled", "ttft_cold_ms", "ttft_warm_ms")
    return [
        {
            "kind": row["kind"],
            "stratum": row["stratum"],
            "replica": row["replica"],
            "cold_ms": row["ttft_cold_ms"],
            "warm_ms": row["ttft_warm_ms"],
        }
        for row in rows(data.evidence, columns)
        if row["is_sampled"] and row["ttft_cold_ms"] is not None and row["ttft_warm_ms"] is not None
    ]


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Return p50, p95 (linear interpolation) and n; the percentiles are None when n is 0."""
    if not values:
        return {"p50": None, "p95": None, "n": 0}
    p50, p95 = (float(value) for value in np.percentile(values, [50, 95]))
    return {"p50": p50, "p95": p95, "n": len(values)}


def hit_ratio(data: RunData) -> dict[str, Any]:
    """Return the fields of ``HitRatio``: hit blocks / whole blocks in either state.

    With both states measured only requests that have hits told in both count, so that like is compared with like: a
    request for an adapter that is not loaded yet fails in the cold state.
    """
    told, failed = {}, {}
    for arm, table in (("cold", data.replay_cold), ("warm", data.replay_warm)):
        found = rows(table, ("profile", "request_id", "full_blocks", "hit_blocks", "error"))
        failed[f"failed_{arm}"] = _known(table, sum(row["error"] is not None for row in found))
        if table is not None:
            told[arm] = {(row["profile"], row["request_id"]): row for row in found if row["hit_blocks"] is not None}
    common = set.intersection(*(set(each) for each in told.values())) if told else set()
    ratios = {
        arm: share(sum(each[key]["hit_blocks"] for key in common), sum(each[key]["full_blocks"] for key in common))
        for arm, each in told.items()
    }
    return {**ratios, **failed, "n": len(common)}


def share(part: float | None, whole: float | None) -> float | None:
    """Return part / whole, or None when either is unknown or the whole is 0."""
    return None if part is None or not whole else part / whole


def gains(data: RunData) -> list[Row]:
    """Return the gain by stratum as validation judged it, and how many items' gains are inferred from it."""
    seen = rows(data.evidence, ("stratum", "gain_basis"))
    inferred = Counter(row["stratum"] for row in seen if row["gain_basis"] == GainBasis.INFERRED)
    columns = ("stratum", "items", "pairs", "gain_ms", "gain_low_ms", "gain_high_ms", "reason")
    return [
        {**row, "inferred": inferred[row["stratum"]]}
        for row in sorted(rows(data.strata, columns), key=lambda row: str(row["stratum"]))
    ]


def holdout(data: RunData) -> dict[str, int] | None:
    """Return how many randomised subtree roots, and items below them, either arm holds; None without a plan."""
    if data.plan is None:
        return None
    members: dict[str, list[str]] = {arm: [] for arm in Arm}
    for row in rows(data.plan, ("subtree_root", "arm", "is_chosen", "reason")):
        if row["subtree_root"] is not None and (row["is_chosen"] or row["reason"] == Reason.HOLDOUT):
            members[row["arm"]].append(row["subtree_root"])
    return {
        "roots_warm": len(set(members[Arm.WARM])),
        "roots_held_out": len(set(members[Arm.HOLDOUT])),
        "items_warm": len(members[Arm.WARM]),
        "items_held_out": len(members[Arm.HOLDOUT]),
    }


def prefill_tokens(data: RunData) -> dict[str, int | None]:
    """Return the tokens that engines computed for warming and for validation, and the unique tokens warmed (spec 6.7).

    A count that the engine did not tell is taken as the whole prompt, so that nothing spent is hidden.
    """
    receipts = rows(data.receipts, ("item_id", "replica", "kind", "outcome", "prompt_tokens", "computed_tokens"))
    warmed = {(row["item_id"], row["replica"]) for row in receipts if row["outcome"] == Outcome.WARMED}
    unique = sum(
        row["unique_tokens"]
        for row in rows(data.plan, ("item_id", "replica", "kind", "unique_tokens"))
        if row["kind"] == ItemKind.KV_PREFIX and (row["item_id"], row["replica"]) in warmed
    )
    warming = sum(
        row["prompt_tokens"] if row["computed_tokens"] is None else row["computed_tokens"]
        for row in receipts
        if row["outcome"] == Outcome.WARMED
    )
    has_validation = data.twins is not None or data.evidence is not None
    return {
        "warming": _known(data.receipts, warming),
        "validation": _validation_tokens(data) if has_validation else None,
        "unique": _known(data.receipts, unique),
    }


def _validation_tokens(data: RunData) -> int:
    twins = sum(
        row["prompt_tokens"] - (row["cached_tokens"] or 0)
        for row in rows(data.twins, ("prompt_tokens", "cached_tokens", "ttft_ms"))
        if row["ttft_ms"] is not None
    )
    survey = sum(row["probe_tokens"] for row in rows(data.replicas, ("probe_tokens",)))
    computed = [meta["computed_tokens"] for meta in data.probe_meta if "computed_tokens" in meta]
    probes = sum(part["probes"] + part["controls"] for part in computed)
    return int(twins + survey + probes)
