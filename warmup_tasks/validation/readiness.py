"""Readiness of replicas: how many of the planned items have a mark that stands now (spec 6.6). Judges nothing else."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import redis as redis_client

from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.items import ItemKind, Mark, PlanRow
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore
from warmup_tasks.validation.night import Night, address_of


def write_readiness(night: Night, redis: redis_client.Redis, moment: datetime) -> dict[str, dict[str, Any]]:
    """Write one record a model and replica that the plan speaks of; return replica → planned, ready, is_ready.

    It counts marks as they stand, so a run that published nothing new still corrects what an earlier one claimed. A
    record ends when so many of its marks have ended that the rest is too few. What a newer plan says of a replica
    stands, and the older one has nothing to add. A run for other kinds than prefixes does not speak of replicas.

    Raises:
        RetryLaterError: Redis does not answer.
    """
    if night.run.request.kinds and ItemKind.KV_PREFIX not in night.run.request.kinds:
        return {}
    store, epochs = ReadinessStore(redis), EpochStore(redis)
    newer = store.newer(night.run.as_of, moment)
    summary: dict[str, dict[str, Any]] = {}
    for replica in night.fleet.replicas:
        rows = [row for row in night.planned if row.replica == replica.name]
        if not rows:
            continue
        published = epochs.read(replica.name)
        epoch = published.epoch if published else None
        standing = _standing(rows, epoch, redis)
        if newer.covers(replica.model, replica.name):
            continue
        if epoch is None or not standing:
            store.void(replica.model, replica.name)
        else:
            store.put(_record(night, replica, rows, standing, epoch), moment)
        is_ready = bool(standing) and len(standing) / len(rows) >= night.run.policy.min_ready_share
        summary[replica.name] = {"planned": len(rows), "ready": len(standing), "is_ready": is_ready}
    return summary


def _standing(rows: Sequence[PlanRow], epoch: str | None, redis: redis_client.Redis) -> list[Mark]:
    marks = MarkStore(redis).get_many([address_of(row) for row in rows])
    return [mark for mark in marks if mark is not None and epoch is not None and mark.epoch == epoch]


def _record(
    night: Night, replica: ReplicaSpec, rows: Sequence[PlanRow], standing: Sequence[Mark], epoch: str
) -> ReadinessRecord:
    least = night.run.policy.min_ready_share
    share = len(standing) / len(rows)
    needed = min(max(1, math.ceil(least * len(rows))), len(standing))
    ends = sorted((mark.expires_at for mark in standing), reverse=True)
    return ReadinessRecord(
        model=replica.model,
        replica=replica.name,
        run_id=night.run.run_id,
        as_of=night.run.as_of,
        epoch=epoch,
        identity_digest=night.fleet.identity(replica.model).digest(),
        planned=len(rows),
        ready=len(standing),
        share=share,
        is_ready=share >= least,
        reason="" if share >= least else f"only {len(standing)} of {len(rows)} planned items are ready",
        expires_at=ends[needed - 1],
        min_share=least,
    )
