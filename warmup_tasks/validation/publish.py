"""From evidence to marks: judge the run, publish what passed, leave standing only what is still true (spec 6.6).

The last gate before ready. Items fail one by one, strata with all their items, and a run with too many failures, or
whose evidence does not keep its suite, publishes nothing new.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import redis as redis_client

from warmup_tasks.identity import EmbedderIdentity, ServingIdentity
from warmup_tasks.items import (
    Evidence,
    EvidenceKind,
    GainBasis,
    ItemKind,
    Mark,
    Outcome,
    PlanRow,
    Reason,
    Residency,
)
from warmup_tasks.lake.records import key_of, partitions_of, read_all
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.tombstones import TombstoneStore
from warmup_tasks.settings import FleetFile
from warmup_tasks.validation.lives import mark_end
from warmup_tasks.validation.night import Night, address_of
from warmup_tasks.validation.readiness import write_readiness
from warmup_tasks.validation.sample import stratum_of
from warmup_tasks.validation.store_probes import value_key
from warmup_tasks.validation.strata import StratumResult, judge_strata
from warmup_tasks.validation.suite import SuiteResult, check_evidence

_OF_EMBEDDINGS = (ItemKind.RESPONSE, ItemKind.QA_PAIR)
STRATA = pa.schema(
    [
        ("run_id", pa.string()),
        ("stratum", pa.string()),
        ("items", pa.int64()),
        ("pairs", pa.int64()),
        ("gain_ms", pa.float64()),
        ("gain_low_ms", pa.float64()),
        ("gain_high_ms", pa.float64()),
        ("reason", pa.string()),
    ]
)
"""One row a stratum: the median of the paired gains with its interval, null where there is none. Grain: stratum."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of the run: every planned item with its last reason, the strata, the suite, and the whole."""

    evidence: list[Evidence]
    strata: dict[str, StratumResult]
    suite: SuiteResult
    failure_share: float
    is_published: bool


def publish(
    lake: Lake, run: Run, fleet: FleetFile, *, redis: redis_client.Redis, now: Callable[[], datetime]
) -> tuple[str, dict[str, Any]]:
    """Judge the run's evidence, write marks and readiness, and publish ``marks/<run_id>``.

    Its tables: ``marks`` (new ones), ``quarantine`` (evidence of what is not ready, with the last reason), ``strata``.
    Void become the marks of items that failed, and on replicas that this run wrote to those of prefixes that it did not
    confirm: nobody knows whether they are still resident.

    Args:
        lake: holds plan, receipts and evidence.
        run: gives the policy.
        fleet: the fleet file.
        redis: the serving store.
        now: the wall clock.

    Returns:
        The reference, and a summary: published or not and why, marks, voided marks, reasons, readiness by replica.

    Raises:
        ContractError: there is no plan.
        RetryLaterError: Redis does not answer; publishing again leaves the same state.
    """
    night = Night.of(lake, run, fleet)
    moment = now()
    judged = _judge(night, _published_epochs(night, redis))
    marks = _marks(night, judged, moment) if judged.is_published else []
    marks = _without_tombstones(marks, redis)
    store = MarkStore(redis)
    voided = store.void_many(_untrue(night, judged, store))
    IdentityBook(redis).remember(_identities(night))
    written = store.put_many(marks, moment)
    if len(kept := _without_tombstones(marks, redis)) < len(marks):  # taken out while the marks were written
        left = {mark.item_id for mark in kept}
        store.void_many(MarkAddress.of(mark) for mark in marks if mark.item_id not in left)
    readiness = write_readiness(night, redis, moment)
    quarantined = [row for row in judged.evidence if not row.is_ready]
    tables = {
        "marks": to_table(marks, Mark),
        "quarantine": to_table(quarantined, Evidence),
        "strata": pa.Table.from_pylist([_stratum_row(run, s) for s in judged.strata.values()], schema=STRATA),
    }
    meta = {
        "is_published": judged.is_published,
        "failure_share": judged.failure_share,
        "broken_expectations": judged.suite.broken,
    }
    ref = lake.publish("marks", run.run_id, tables, meta)
    return ref, {
        **meta,
        "items": len(judged.evidence),
        "ready": sum(row.is_ready for row in judged.evidence) if judged.is_published else 0,
        "marks_written": written,
        "marks_voided": voided,
        "reasons": dict(Counter(row.reason for row in quarantined)),
        "readiness": readiness,
    }


def _without_tombstones(marks: list[Mark], redis: redis_client.Redis) -> list[Mark]:
    out = TombstoneStore(redis).item_ids()
    return [mark for mark in marks if mark.item_id not in out]


def _published_epochs(night: Night, redis: redis_client.Redis) -> dict[str, str | None]:
    names = sorted({row.replica for row in night.planned if row.replica is not None})
    records = EpochStore(redis).read_many(names)
    return {name: record.epoch if record else None for name, record in zip(names, records, strict=True)}


def _judge(night: Night, published: Mapping[str, str | None]) -> Judgement:
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


def _marks(night: Night, judged: Judgement, moment: datetime) -> list[Mark]:
    half_turnover_s: dict[str, float | None] = {}
    looked_from: dict[str, datetime] = {}
    for ref in partitions_of(night.lake, "evidence", night.run.run_id):
        meta = night.lake.meta(ref)
        half_turnover_s |= meta.get("half_turnover_s", {})
        looked_from |= {name: datetime.fromisoformat(time) for name, time in meta.get("looked_from", {}).items()}
    rows = {key_of(row): row for row in night.planned}
    marks = []
    for seen in judged.evidence:
        if not seen.is_ready:
            continue
        row = rows[seen.item_id, seen.replica]
        end = mark_end(
            seen,
            night.receipts[key_of(row)],
            moment,
            mark_life_s=night.run.policy.mark_life_s,
            half_turnover_s=half_turnover_s,
            looked_from=looked_from,
        )
        marks.append(_mark(night, row, seen, moment, end))
    return marks


def _mark(night: Night, row: PlanRow, seen: Evidence, moment: datetime, end: datetime) -> Mark:
    payload = night.plan.payloads.get(row.payload_sha256 or "")
    return Mark(
        item_id=row.item_id,
        kind=row.kind,
        tenant=row.tenant,
        replica=row.replica,
        model=row.model,
        adapter=row.adapter,
        identity_digest=row.identity_digest,
        epoch=seen.replica_epoch if row.replica is not None else None,
        run_id=night.run.run_id,
        as_of=night.run.as_of,
        marked_at=moment,
        expires_at=end,
        residency=seen.residency,
        evidence_kind=seen.evidence_kind,
        gain_basis=seen.gain_basis,
        value_key=value_key(row, payload) if payload else None,
        embedder_digest=night.fleet.embedder.digest() if row.kind in _OF_EMBEDDINGS else None,
    )


def _untrue(night: Night, judged: Judgement, store: MarkStore) -> list[MarkAddress]:
    """Return the marks that may not stand: of items that failed, and of prefixes that may have been evicted."""
    rows = {key_of(row): row for row in night.planned}
    failed = [address_of(rows[seen.item_id, seen.replica]) for seen in judged.evidence if not seen.is_ready]
    confirmed = {(seen.item_id, seen.replica) for seen in judged.evidence if seen.is_ready}
    evicted = [
        MarkAddress.of(mark)
        for replica in sorted(_written_to(night))
        for mark in store.find(Reach(replica=replica))
        if mark.kind is ItemKind.KV_PREFIX and (mark.item_id, mark.replica) not in confirmed
    ]
    return [*failed, *evicted]


def _written_to(night: Night) -> set[str]:
    return {
        receipt.replica
        for receipt in night.receipts.values()
        if receipt.kind is ItemKind.KV_PREFIX and receipt.replica is not None and receipt.computed_tokens != 0
    }


def _identities(night: Night) -> list[ServingIdentity | EmbedderIdentity]:
    served = {(row.model, row.adapter) for row in night.planned if row.kind is not ItemKind.EMBEDDING}
    known = [(m, a) for m, a in sorted(served, key=str) if a is None or night.fleet.adapter(a) is not None]
    return [night.fleet.embedder, *(night.fleet.identity(model, adapter) for model, adapter in known)]


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


def _stratum_row(run: Run, result: StratumResult) -> dict[str, Any]:
    gain = result.gain
    return {
        "run_id": run.run_id,
        "stratum": result.stratum,
        "items": result.items,
        "pairs": gain.n if gain else 0,
        "gain_ms": gain.median_ms if gain else None,
        "gain_low_ms": gain.low_ms if gain else None,
        "gain_high_ms": gain.high_ms if gain else None,
        "reason": result.reason,
    }
