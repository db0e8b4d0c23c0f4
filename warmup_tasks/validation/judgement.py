"""The verdict on a run, or on one profile's part: each planned item with its last reason, the strata, the whole.

Reads evidence and judges (spec 6.6); what follows from it for marks is done in ``publish.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from warmup_tasks.items import Evidence, EvidenceKind, GainBasis, Outcome, PlanRow, Reason, Residency
from warmup_tasks.lake.records import key_of, read_all
from warmup_tasks.validation.night import Night
from warmup_tasks.validation.sample import stratum_of
from warmup_tasks.validation.strata import StratumResult, judge_strata
from warmup_tasks.validation.suite import SuiteResult, check_evidence


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of the run: every planned item with its last reason, the strata, the suite, and the whole."""

    evidence: list[Evidence]
    strata: dict[str, StratumResult]
    suite: SuiteResult
    failure_share: float
    is_published: bool


def judge(night: Night, published: Mapping[str, str | None]) -> Judgement:
    """Judge the planned items of a night, or of one profile's part of it.

    Args:
        night: plan, receipts, policy; the evidence is read from its lake.
        published: replica → epoch that the agent publishes now, None where it is unknown.
    """
    policy, planned = night.run.policy, night.planned
    found = {(row.item_id, row.replica): row for row in read_all(night.lake, "evidence", night.run.run_id, Evidence)}
    evidence = [_in_epoch(found.get(key_of(row)) or _no_evidence(row), published) for row in planned]
    strata = judge_strata(evidence, max_failure_share=policy.max_failure_share, seed=night.run.request.seed)
    evidence = [_in_stratum(row, strata[row.stratum].reason) for row in evidence]
    suite = check_evidence(evidence, len(planned))
    tried = [row for row in evidence if _was_tried(night, row)]
    share = sum(not row.is_ready for row in tried) / len(tried) if tried else 0.0
    return Judgement(evidence, strata, suite, share, suite.is_met and share <= policy.max_failure_share)


def _in_epoch(row: Evidence, published: Mapping[str, str | None]) -> Evidence:
    """Return the row, not ready when its replica has left the epoch of the probe."""
    if row.replica is None or not row.is_ready or published[row.replica] == row.replica_epoch is not None:
        return row
    reason = Reason.EPOCH_UNKNOWN if published[row.replica] is None else Reason.EPOCH_CHANGED
    return _failed(row, reason)


def _in_stratum(row: Evidence, reason: str) -> Evidence:
    return _failed(row, reason) if reason and row.is_ready else row


def _failed(row: Evidence, reason: str) -> Evidence:
    return row.model_copy(update={"is_ready": False, "reason": reason})


def _was_tried(night: Night, row: Evidence) -> bool:
    """Say whether the item counts for the run's failure share: all but those skipped or refused with a reason."""
    receipt = night.receipts.get((row.item_id, row.replica))
    return receipt is None or receipt.outcome in (Outcome.WARMED, Outcome.FAILED)


def _no_evidence(row: PlanRow) -> Evidence:
    """Return what is known of an item that no probe reached: nothing."""
    return Evidence(
        run_id=row.run_id,
        item_id=row.item_id,
        kind=row.kind,
        profile=row.profile,
        replica=row.replica,
        tenant=row.tenant,
        adapter=row.adapter,
        stratum=stratum_of(row),
        replica_epoch=None,
        is_identity_ok=False,
        residency=Residency.UNVERIFIED,
        evidence_kind=EvidenceKind.NONE,
        cached_tokens=None,
        expected_cached_tokens=0,
        is_sampled=False,
        ttft_cold_ms=None,
        ttft_warm_ms=None,
        is_answer_equal=None,
        is_control_missed=None,
        gain_ms=None,
        gain_basis=GainBasis.NONE,
        is_ready=False,
        reason=Reason.ENGINE_UNAVAILABLE,
    )
