"""One shard of a plan, carried out: skip what depends on a failure, warm the rest by kind, write one receipt an item.

What a newer plan has warmed is left alone: warming by the older one would evict it.

Receipts of a shard are published together when it has ended; a task that runs again publishes them again.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import redis as redis_client

from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.items import KINDS, Arm, PlanRow, Reason, Receipt
from warmup_tasks.lake.records import Key, key_of, read_plan
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.readiness import ReadinessStore
from warmup_tasks.warming.before import Before
from warmup_tasks.warming.registry import WARMERS
from warmup_tasks.warming.work import Attempt, OpenEngine, Work


async def warm_shard(
    lake: Lake,
    run: Run,
    shard: str,
    fleet: FleetFile,
    *,
    open_engine: OpenEngine,
    redis: redis_client.Redis,
    now: Callable[[], datetime],
) -> tuple[str, dict[str, Any]]:
    """Warm one shard of the run's plan and publish ``receipts/<run_id>.<shard>``.

    Args:
        lake: holds the plan and the receipts of earlier waves.
        run: gives parameters, policy and the run's id.
        shard: one of the plan's shard ids; a shard without rows gives an empty table.
        fleet: the fleet file.
        open_engine: opens a replica.
        redis: the serving store; values are written there without a mark.
        now: the wall clock.

    Returns:
        The reference, and a summary: items by outcome and reason, and the tokens that engines computed.

    Raises:
        RetryLaterError: the shard's replica, or Redis, does not answer.
        GiveUpError: somebody has to change something first; the message says what.
    """
    plan = read_plan(lake, run.run_id, {"shard": [shard]})
    rows = sorted(
        (row for row in plan.rows if row.is_chosen and row.arm is Arm.WARM),
        key=lambda row: (KINDS[row.kind].order_in_wave, row.order),
    )
    before = Before.of(lake, run, rows[0].profile, rows[0].wave) if rows else Before.nothing()
    fallen = before.fallen(rows)
    newer = ReadinessStore(redis).newer(run.as_of, now())
    superseded = {key_of(row) for row in rows if newer.covers(row.model, row.replica)}
    async with Work(lake, run, shard, fleet, plan, before.witnesses, redis, open_engine, now) as work:
        attempts = {key_of(row): work.skipped(Reason.DEPENDENCY_FAILED) for row in rows if key_of(row) in fallen}
        attempts |= {key: work.skipped(Reason.SUPERSEDED) for key in superseded}
        for kind, members in groupby((row for row in rows if key_of(row) not in attempts), key=lambda row: row.kind):
            attempts |= await WARMERS[kind](work, list(members))
    receipts = [_receipt(run, row, attempts) for row in rows]
    ref = lake.publish("receipts", f"{run.run_id}.{shard}", {"receipts": to_table(receipts, Receipt)})
    return ref, _summary(receipts)


def _receipt(run: Run, row: PlanRow, attempts: dict[Key, Attempt]) -> Receipt:
    done = attempts[key_of(row)]
    return Receipt(
        run_id=run.run_id,
        as_of=run.as_of,
        item_id=row.item_id,
        kind=row.kind,
        profile=row.profile,
        replica=row.replica,
        tenant=row.tenant,
        model=row.model,
        adapter=row.adapter,
        identity_digest=row.identity_digest,
        wave=row.wave,
        order=row.order,
        shard=row.shard,
        outcome=done.outcome,
        reason=done.reason,
        replica_epoch=done.epoch,
        started_at=done.started_at,
        finished_at=done.finished_at,
        prompt_tokens=row.prompt_tokens if done.prompt_tokens is None else done.prompt_tokens,
        computed_tokens=done.computed_tokens,
        ttft_ms=done.ttft_ms,
        arm=row.arm,
        assignment_probability=row.assignment_probability,
        expected_gain_ms=row.expected_gain_ms,
    )


def _summary(receipts: Sequence[Receipt]) -> dict[str, Any]:
    return {
        "items": len(receipts),
        "outcomes": dict(Counter(str(receipt.outcome) for receipt in receipts)),
        "reasons": dict(Counter(receipt.reason for receipt in receipts if receipt.reason)),
        "computed_tokens": sum(
            receipt.prompt_tokens if receipt.computed_tokens is None else receipt.computed_tokens
            for receipt in receipts
            if receipt.ttft_ms is not None
        ),
    }
