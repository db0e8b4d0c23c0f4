"""From evidence to marks: judge the run, publish what passed, leave standing only what is still true (spec 6.6).

The last gate before ready. Items fail one by one, strata with all their items, and a run with too many failures, or
whose evidence does not keep its suite, publishes nothing new. A profile that ends early may be published by itself, so
that its replicas take traffic while others still warm: the same limits judge it, and what passed them stands.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import redis as redis_client

from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.identity import EmbedderIdentity, ServingIdentity
from warmup_tasks.items import (
    Evidence,
    ItemKind,
    Mark,
    Outcome,
    PlanRow,
)
from warmup_tasks.lake.columns import uncollected
from warmup_tasks.lake.records import key_of
from warmup_tasks.lake.schemas import MARKS, to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.coverage import coverage
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.tombstones import TombstoneStore
from warmup_tasks.validation.coverage import items_by_coverage
from warmup_tasks.validation.judgement import Judgement, judge
from warmup_tasks.validation.lives import mark_end
from warmup_tasks.validation.night import Night, address_of
from warmup_tasks.validation.readiness import write_readiness
from warmup_tasks.validation.store_probes import value_key
from warmup_tasks.validation.strata import StratumResult

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


@uncollected()
def publish(
    lake: Lake, run: Run, fleet: FleetFile, *, redis: redis_client.Redis, now: Callable[[], datetime]
) -> tuple[str, dict[str, Any]]:
    """Judge the run's evidence, write marks and readiness, and publish ``marks/<run_id>``.

    Its tables: ``marks`` (new ones), ``quarantine`` (evidence of what is not ready, with the last reason), ``strata``.
    Void become the marks of items that failed, and on replicas that this run wrote to those of prefixes that it did not
    confirm: nobody knows whether they are still resident. Marks of a newer plan stand, but for prefixes that were
    proved before this run wrote to their replica. Profiles are gone through one by one, twice: the whole is judged
    before anything is written, and no more than one profile's plan is held.

    Args:
        lake: holds plan, receipts and evidence.
        run: gives the policy.
        fleet: the fleet file.
        redis: the serving store.
        now: the wall clock.

    Returns:
        The reference, and a summary: published or not and why, marks, voided marks, reasons, readiness by replica, and
        coverage by model: replicas ``ready`` of all, why the others are ``missing``, and items by how many hold them.

    Raises:
        ContractError: there is no plan.
        RetryLaterError: Redis does not answer; publishing again leaves the same state.
    """
    moment = now()
    judged = judge(lake, run, fleet, _profiles(lake, run), redis=redis)
    marks, done = _write_all(lake, run, fleet, judged, redis, moment)
    quarantined = [row for evidence in judged.evidence.values() for row in evidence if not row.is_ready]
    tables = {
        "marks": pa.concat_tables(marks) if marks else MARKS.empty_table(),
        "quarantine": to_table(quarantined, Evidence),
        "strata": pa.Table.from_pylist([_stratum_row(run, s) for s in judged.strata], schema=STRATA),
    }
    meta = _account(judged) | {"coverage": done["coverage"]}
    return lake.publish("marks", run.run_id, tables, meta), meta | done


def publish_profile(
    lake: Lake, run: Run, profile: str, fleet: FleetFile, *, redis: redis_client.Redis, now: Callable[[], datetime]
) -> dict[str, Any]:
    """Judge one profile's evidence by itself and write its marks and readiness; the lake gets the whole run's later.

    Args:
        lake: holds plan, receipts and evidence.
        run: gives the policy.
        profile: hardware profile, all of whose probes have ended.
        fleet: the fleet file.
        redis: the serving store.
        now: the wall clock.

    Returns:
        The summary of :func:`publish`, of this profile.

    Raises:
        ContractError: there is no plan.
        RetryLaterError: Redis does not answer.
    """
    moment = now()
    judged = judge(lake, run, fleet, [profile], redis=redis)
    return _account(judged) | _write_all(lake, run, fleet, judged, redis, moment)[1]


def _write_all(
    lake: Lake, run: Run, fleet: FleetFile, judged: Judgement, redis: redis_client.Redis, moment: datetime
) -> tuple[list[pa.Table], dict[str, Any]]:
    """Write marks and readiness profile by profile; return the marks as tables, and what was done."""
    done, readiness = Counter[str](), dict[str, Any]()
    written = []
    for profile, evidence in judged.evidence.items():
        night = Night.of(lake, run, fleet, profile)
        marks = _marks(night, evidence, moment) if judged.is_published else []
        done += _write(night, evidence, marks, redis, moment)
        readiness |= write_readiness(night, redis, moment)
        written.append(to_table(marks, Mark))
    every = [row for evidence in judged.evidence.values() for row in evidence]
    return written, {
        "items": len(every),
        "ready": sum(row.is_ready for row in every) if judged.is_published else 0,
        "marks_written": done["written"],
        "marks_voided": done["voided"],
        "reasons": dict(Counter(row.reason for row in every if not row.is_ready)),
        "readiness": readiness,
        "coverage": _coverage(every if judged.is_published else [], fleet, redis, moment),
    }


def _coverage(
    evidence: Sequence[Evidence], fleet: FleetFile, redis: redis_client.Redis, moment: datetime
) -> dict[str, dict[str, Any]]:
    """Return model → how many of its replicas are ready now, why the others are not, and the items by coverage."""
    found = {}
    for model, items in items_by_coverage(evidence, fleet).items():
        names = [replica.name for replica in fleet.replicas if replica.model == model]
        found[model] = {**coverage(redis, model, names, now=moment)._asdict(), "items": items}
    return found


def _account(judged: Judgement) -> dict[str, Any]:
    return {
        "is_published": judged.is_published,
        "failure_share": judged.failure_share,
        "broken_expectations": judged.suite.broken,
    }


def _profiles(lake: Lake, run: Run) -> list[str]:
    """Return the profiles for which something was chosen, sorted."""
    chosen = lake.read(f"plan/{run.run_id}", "plan", ["profile"], {"is_chosen": [True]})
    return sorted(chosen["profile"].unique().to_pylist())


def _write(
    night: Night, evidence: Sequence[Evidence], marks: list[Mark], redis: redis_client.Redis, moment: datetime
) -> Counter[str]:
    """Void what may not stand, then write one profile's marks; what an operator took out is not written."""
    store = MarkStore(redis)
    marks[:] = _without_tombstones(marks, redis)
    voided = store.void_many(_not_ready(night, evidence), as_of=night.run.as_of)
    voided += store.void_many(_perhaps_evicted(night, evidence, store))
    IdentityBook(redis).remember(_identities(night))
    written = store.put_many(marks, moment)
    if len(kept := _without_tombstones(marks, redis)) < len(marks):  # taken out while the marks were written
        left = {mark.item_id for mark in kept}
        store.void_many(MarkAddress.of(mark) for mark in marks if mark.item_id not in left)
    return Counter(voided=voided, written=written)


def _without_tombstones(marks: list[Mark], redis: redis_client.Redis) -> list[Mark]:
    out = TombstoneStore(redis).item_ids()
    return [mark for mark in marks if mark.item_id not in out]


def _marks(night: Night, evidence: Sequence[Evidence], moment: datetime) -> list[Mark]:
    partition = f"evidence/{night.run.run_id}.{night.profile}"
    meta = night.lake.meta(partition) if night.lake.latest(*partition.split("/")) else {}
    looked_from = {name: datetime.fromisoformat(time) for name, time in meta.get("looked_from", {}).items()}
    rows = {key_of(row): row for row in night.planned}
    marks = []
    for seen in evidence:
        if not seen.is_ready:
            continue
        row = rows[seen.item_id, seen.replica]
        end = mark_end(
            seen,
            night.receipts[key_of(row)],
            moment,
            mark_life_s=night.run.policy.mark_life_s,
            half_turnover_s=meta.get("half_turnover_s", {}),
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


def _not_ready(night: Night, evidence: Sequence[Evidence]) -> list[MarkAddress]:
    """Return where marks of items would stand that this run found not ready."""
    rows = {key_of(row): row for row in night.planned}
    return [address_of(rows[seen.item_id, seen.replica]) for seen in evidence if not seen.is_ready]


def _perhaps_evicted(night: Night, evidence: Sequence[Evidence], store: MarkStore) -> list[MarkAddress]:
    """Return the marks of prefixes that this run may have evicted: unconfirmed, and proved before its last write."""
    confirmed = {(seen.item_id, seen.replica) for seen in evidence if seen.is_ready}
    written = _last_writes(night)
    return [
        MarkAddress.of(mark)
        for mark in store.find_on(written)
        if mark.kind is ItemKind.KV_PREFIX
        and (mark.item_id, mark.replica) not in confirmed
        and not (mark.as_of > night.run.as_of and mark.marked_at > written[mark.replica or ""])
    ]


def _last_writes(night: Night) -> dict[str, datetime]:
    """Return replica → when this run last computed blocks of a prefix there."""
    written: dict[str, datetime] = {}
    for receipt in night.receipts.values():
        was_sent = receipt.kind is ItemKind.KV_PREFIX and receipt.outcome is not Outcome.SKIPPED
        if was_sent and receipt.computed_tokens != 0 and receipt.replica is not None:
            written[receipt.replica] = max(receipt.finished_at, written.get(receipt.replica, receipt.finished_at))
    return written


def _identities(night: Night) -> list[ServingIdentity | EmbedderIdentity]:
    served = {(row.model, row.adapter) for row in night.planned if row.kind is not ItemKind.EMBEDDING}
    known = [(m, a) for m, a in sorted(served, key=str) if a is None or night.fleet.adapter(a) is not None]
    return [night.fleet.embedder, *(night.fleet.identity(model, adapter) for model, adapter in known)]


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
