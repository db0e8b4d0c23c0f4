"""The probes of one hardware profile, and the evidence that comes of them (spec 6.4, 6.5).

Here findings become evidence rows: facts, gains and a first verdict a row. Whether a whole stratum or the run fails is
decided in ``publish.py``.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import redis as redis_client

from warmup_tasks.engines.base import Engine
from warmup_tasks.errors import RetryLaterError
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.items import Arm, Evidence, GainBasis, ItemKind, Outcome, PlanRow, Reason
from warmup_tasks.lake.columns import uncollected
from warmup_tasks.lake.records import Key, key_of
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.replica_turns import ReplicaTurns
from warmup_tasks.validation.intervals import gain_of
from warmup_tasks.validation.looks import Finding, ReplicaFindings
from warmup_tasks.validation.night import Night, is_held_out, is_prefix
from warmup_tasks.validation.replica_probes import ReplicaProbe
from warmup_tasks.validation.sample import stratum_of
from warmup_tasks.validation.store_probes import probe_values
from warmup_tasks.validation.turns import in_turn
from warmup_tasks.validation.verdicts import Facts, reason_against

_NOTHING = ReplicaFindings()


async def run_probes(
    lake: Lake,
    run: Run,
    profile: str,
    fleet: FleetFile,
    *,
    open_engine: Callable[[ReplicaSpec], Engine],
    redis: redis_client.Redis,
    now: Callable[[], datetime],
) -> tuple[str, dict[str, Any]]:
    """Probe what was warmed on one profile and publish ``evidence/<run_id>.<profile>``.

    Items that were not warmed are not probed, nor are held-out ones: a probe is a write, and would warm them. The
    partition's meta holds ``computed_tokens`` (probes and controls), and by replica ``half_turnover_s``,
    ``contradictions`` and the table of its ``identity``.

    Args:
        lake: holds plan, receipts and twins.
        run: gives policy and seed.
        profile: hardware profile.
        fleet: the fleet file.
        open_engine: opens a replica.
        redis: the serving store, and where epochs are published.
        now: the wall clock.

    Returns:
        The reference, and a summary: items by residency and reason, tokens that engines computed.

    Raises:
        RetryLaterError: Redis or none of the profile's replicas answers, or others work on one for too long.
    """
    night = Night.of(lake, run, fleet, profile)
    rows = night.judged
    epochs = EpochStore(redis)
    turns = ReplicaTurns(redis, f"{run.run_id}.{profile}.probe", wait_s=run.policy.turn_wait_s)

    async def one(replica: ReplicaSpec) -> ReplicaFindings:
        mine = [row for row in rows if row.replica == replica.name and _was_warmed(night, row)]
        async with turns.on(replica.turn):
            return await ReplicaProbe(night, replica, mine, epochs, now).run(open_engine)

    replicas = night.replicas()
    found = {replica.name: seen for replica, seen in zip(replicas, await in_turn(replicas, one), strict=True)}
    if found and all(_is_lost(seen) for seen in found.values()):
        raise RetryLaterError(f"no replica of profile {profile!r} answered")
    stored = [row for row in rows if row.replica is None and _was_warmed(night, row)]
    values = probe_values(stored, night.plan, fleet, redis)
    with uncollected():
        evidence = _with_inferred_gains([_evidence(night, row, found, values) for row in rows], run.request.seed)
    meta = {
        "computed_tokens": {
            "probes": sum(seen.probe_tokens for seen in found.values()),
            "controls": sum(seen.control_tokens for seen in found.values()),
        },
        "half_turnover_s": {name: seen.half_turnover_s for name, seen in sorted(found.items())},
        "looked_from": {
            name: seen.looked_from.isoformat() for name, seen in sorted(found.items()) if seen.looked_from is not None
        },
        "contradictions": {name: seen.contradictions for name, seen in sorted(found.items())},
        "identity": {
            name: [field._asdict() for _, field in sorted(seen.identity.items())]
            for name, seen in sorted(found.items())
        },
    }
    table = to_table(evidence, Evidence)
    return lake.publish("evidence", f"{run.run_id}.{profile}", {"evidence": table}, meta), _summary(evidence, meta)


def _was_warmed(night: Night, row: PlanRow) -> bool:
    receipt = night.receipts.get(key_of(row))
    return row.arm is Arm.WARM and receipt is not None and receipt.outcome is Outcome.WARMED


def _is_lost(seen: ReplicaFindings) -> bool:
    return bool(seen.findings) and all(
        finding.refusal == Reason.ENGINE_UNAVAILABLE for finding in seen.findings.values()
    )


def _evidence(
    night: Night, row: PlanRow, found: Mapping[str, ReplicaFindings], values: Mapping[Key, Finding]
) -> Evidence:
    seen = found.get(row.replica or "", _NOTHING)
    key = key_of(row)
    finding = (values if row.replica is None else seen.findings).get(key, Finding())
    witnesses = _witnesses(night, row, found)
    reason = Reason.HOLDOUT if is_held_out(row) else reason_against(_facts(night, row, seen, finding, witnesses))
    twin = night.twins.get(key) if key in night.sample else None
    cold_ms = twin.ttft_ms if twin is not None and twin.error is None else None
    is_pair = cold_ms is not None and finding.ttft_ms is not None
    payload = night.plan.payloads.get(row.payload_sha256 or "")
    return Evidence(
        run_id=night.run.run_id,
        item_id=row.item_id,
        kind=row.kind,
        profile=row.profile,
        replica=row.replica,
        tenant=row.tenant,
        adapter=row.adapter,
        stratum=stratum_of(row),
        replica_epoch=seen.epoch_before if seen.epoch_before == seen.epoch_after else None,
        is_identity_ok=not any(witness.contradictions for witness in witnesses),
        residency=finding.residency,
        evidence_kind=finding.evidence_kind,
        cached_tokens=finding.cached_tokens,
        expected_cached_tokens=payload.expected_cached_tokens if payload else 0,
        is_sampled=key in night.sample,
        ttft_cold_ms=cold_ms,
        ttft_warm_ms=finding.ttft_ms,
        is_answer_equal=finding.is_answer_equal,
        is_control_missed=seen.control_missed.get(key),
        gain_ms=cold_ms - finding.ttft_ms if cold_ms is not None and finding.ttft_ms is not None else None,
        gain_basis=GainBasis.MEASURED if is_pair else GainBasis.NONE,
        is_ready=reason == "",
        reason=reason,
    )


def _witnesses(night: Night, row: PlanRow, found: Mapping[str, ReplicaFindings]) -> list[ReplicaFindings]:
    """Return the replicas that speak for an item's identity: its own, or all that may have generated an answer."""
    if row.replica is not None:
        return [found.get(row.replica, _NOTHING)]
    if row.kind is ItemKind.EMBEDDING:
        return []
    return [
        found[replica.name] for replica in night.fleet.replicas if replica.model == row.model and replica.name in found
    ]


def _facts(
    night: Night, row: PlanRow, seen: ReplicaFindings, finding: Finding, witnesses: Sequence[ReplicaFindings]
) -> Facts:
    refused = [witness.refused_adapters.get(row.adapter or "", "") for witness in witnesses]
    return Facts(
        receipt=night.receipts.get(key_of(row)),
        is_on_replica=row.replica is not None,
        is_identity_ok=not any(witness.contradictions for witness in witnesses),
        epoch_before=seen.epoch_before,
        epoch_after=seen.epoch_after,
        residency=finding.residency,
        refusal=finding.refusal or next(filter(None, refused), ""),
        are_salts_kept=seen.are_salts_kept if is_prefix(row) else None,
        is_answer_equal=finding.is_answer_equal,
        is_identity_verified=not any(w.missing(_required(night, row)) for w in witnesses),
    )


def _required(night: Night, row: PlanRow) -> list[str]:
    """Return the identity fields that must be verified for an item; an adapter's version concerns its items alone."""
    return [name for name in night.run.policy.required_evidence if name != "adapter_version" or row.adapter is not None]


def _with_inferred_gains(evidence: Sequence[Evidence], seed: int) -> list[Evidence]:
    """Return the rows, the resident ones outside the sample with their stratum's gain, *inferred* (spec 6.5d)."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in evidence:
        if row.is_ready and row.ttft_cold_ms is not None and row.ttft_warm_ms is not None:
            pairs[row.stratum].append((row.ttft_cold_ms, row.ttft_warm_ms))
    gains = {stratum: gain_of(measured, seed=seed) for stratum, measured in pairs.items()}
    return [_inferred(row, gains.get(row.stratum)) for row in evidence]


def _inferred(row: Evidence, gain: Any) -> Evidence:
    if gain is None or row.gain_basis is not GainBasis.NONE or not row.is_ready:
        return row
    return row.model_copy(update={"gain_ms": gain.median_ms, "gain_basis": GainBasis.INFERRED})


def _summary(evidence: Sequence[Evidence], meta: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "items": len(evidence),
        "residency": dict(Counter(str(row.residency) for row in evidence)),
        "reasons": dict(Counter(row.reason for row in evidence if row.reason)),
        "computed_tokens": meta["computed_tokens"],
    }
