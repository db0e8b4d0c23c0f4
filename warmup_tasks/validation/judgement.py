"""The verdict on a run, or on one profile's part: each planned item with its last reason, the strata, the whole.

Reads evidence and judges (spec 6.6); what follows from it for marks is done in ``publish.py``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import redis as redis_client

from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.items import Evidence, EvidenceKind, GainBasis, Outcome, PlanRow, Reason, Residency
from warmup_tasks.lake.records import key_of, read_part
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.validation.night import Night
from warmup_tasks.validation.sample import stratum_of
from warmup_tasks.validation.strata import StratumResult, judge_strata
from warmup_tasks.validation.suite import SuiteResult, check_evidence


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of the items: every planned one with its last reason by profile, strata, suite, and the whole."""

    evidence: dict[str, list[Evidence]]
    strata: list[StratumResult]
    suite: SuiteResult
    failure_share: float
    is_published: bool


def judge(lake: Lake, run: Run, fleet: FleetFile, profiles: Iterable[str], *, redis: redis_client.Redis) -> Judgement:
    """Judge the planned items of some profiles as one whole; no more than one profile's plan is held at a time.

    Args:
        lake: holds plan, receipts and evidence.
        run: gives the policy.
        fleet: the fleet file.
        profiles: whose items.
        redis: where epochs are published.
    """
    evidence: dict[str, list[Evidence]] = {}
    strata: list[StratumResult] = []
    tried = failed = 0
    for profile in profiles:
        night = Night.of(lake, run, fleet, profile)
        rows, results = _of_profile(night, _published_epochs(night, redis))
        evidence[profile] = rows
        strata += results
        of_weight = [row for row in rows if _was_tried(night, row)]
        tried += len(of_weight)
        failed += sum(not row.is_ready for row in of_weight)
    every = [row for rows in evidence.values() for row in rows]
    suite, share = check_evidence(every, len(every)), failed / tried if tried else 0.0
    return Judgement(evidence, strata, suite, share, suite.is_met and share <= run.policy.max_failure_share)


def _of_profile(night: Night, published: Mapping[str, str | None]) -> tuple[list[Evidence], list[StratumResult]]:
    """Return every planned item with its last reason, and the strata, which lie in one profile each."""
    policy = night.run.policy
    partition = f"{night.run.run_id}.{night.profile}"
    found = {(row.item_id, row.replica): row for row in read_part(night.lake, "evidence", partition, Evidence)}
    evidence = [_in_epoch(found.get(key_of(row)) or _no_evidence(row), published) for row in night.planned]
    strata = judge_strata(evidence, max_failure_share=policy.max_failure_share, seed=night.run.request.seed)
    return [_in_stratum(row, strata[row.stratum].reason) for row in evidence], list(strata.values())


def _published_epochs(night: Night, redis: redis_client.Redis) -> dict[str, str | None]:
    names = sorted({row.replica for row in night.planned if row.replica is not None})
    records = EpochStore(redis).read_many(names)
    return {name: record.epoch if record else None for name, record in zip(names, records, strict=True)}


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
