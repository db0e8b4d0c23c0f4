"""Cold twins: the sampled prompts behind other salts, asked before anything is warmed (spec 6.1).

A twin gives the cold answer and the cold time to first token. It costs a full prefill and evicts, which is why it comes
first; and it can never hit, which is why it is a fair comparison.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import redis as redis_client

from warmup_tasks.engines.attempts import scrape
from warmup_tasks.engines.base import Engine, GenerationRequest
from warmup_tasks.engines.canary import Answer, unused_label
from warmup_tasks.errors import RejectItemError, RetryLaterError
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.identity import digest
from warmup_tasks.items import ItemKind, PlanRow, PromptBody, Reason, TwinResult
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.readiness import ReadinessStore
from warmup_tasks.serving.replica_turns import ReplicaTurns
from warmup_tasks.validation.answers import top_to_json
from warmup_tasks.validation.identity_check import check_identity
from warmup_tasks.validation.meter import Meter
from warmup_tasks.validation.night import Night
from warmup_tasks.validation.sample import stratum_of
from warmup_tasks.validation.turns import in_turn

_TRIES = 3
_log = logging.getLogger(__name__)


async def run_twins(
    lake: Lake,
    run: Run,
    profile: str,
    fleet: FleetFile,
    *,
    open_engine: Callable[[ReplicaSpec], Engine],
    redis: redis_client.Redis,
    now: Callable[[], datetime],
) -> tuple[str, dict[str, Any]]:
    """Ask the twins of one profile's sample and publish ``twins/<run_id>.<profile>``.

    Twins of a replica are asked one after another. A good twin of an earlier try, from the same epoch, is kept: a cold
    answer stays one. A replica that does not answer has twins with an error, and the others go on. One that a newer
    plan has warmed is not asked.

    Args:
        lake: holds the plan.
        run: gives policy and seed.
        profile: hardware profile.
        fleet: the fleet file.
        open_engine: opens a replica.
        redis: where epochs are published.
        now: the wall clock.

    Returns:
        The reference, and a summary: asked, kept, errors by reason, tokens that engines computed.

    Raises:
        RetryLaterError: no replica of the profile answers, or others work on one for too long.
    """
    night = Night.of(lake, run, fleet, profile, ItemKind.KV_PREFIX)
    epochs = EpochStore(redis)
    turns = ReplicaTurns(redis, f"{run.run_id}.{profile}.twins", wait_s=run.policy.turn_wait_s)
    newer = ReadinessStore(redis).newer(run.as_of, now())

    async def one(replica: ReplicaSpec) -> tuple[list[TwinResult], int]:
        if newer.covers(replica.model, replica.name):
            return [], 0
        async with turns.on(replica.turn):
            record = epochs.read(replica.name)
            return await _on_replica(night, replica, record.epoch if record else None, open_engine)

    parts = await in_turn(night.replicas(), one)
    rows = sorted((row for part, _ in parts for row in part), key=lambda row: (row.replica, row.stratum, row.item_id))
    if rows and all(row.error == Reason.ENGINE_UNAVAILABLE for row in rows):
        raise RetryLaterError(f"no replica of profile {profile!r} answered")
    ref = lake.publish("twins", f"{run.run_id}.{profile}", {"twins": to_table(rows, TwinResult)})
    kept = sum(night.twins.get((row.item_id, row.replica)) == row for row in rows)
    return ref, {
        "twins": len(rows),
        "kept": kept,
        "errors": dict(Counter(row.error for row in rows if row.error is not None)),
        "computed_tokens": sum(computed for _, computed in parts),
    }


async def _on_replica(
    night: Night, replica: ReplicaSpec, epoch: str | None, open_engine: Callable[[ReplicaSpec], Engine]
) -> tuple[list[TwinResult], int]:
    rows = night.sampled(replica.name)
    if not rows:
        return [], 0
    deadline_s = night.run.policy.request_deadline_s
    async with open_engine(replica) as engine:
        meter = Meter(engine, deadline_s)
        try:
            label = unused_label(await scrape(engine, deadline_s=deadline_s))
            check = await check_identity(
                engine,
                replica,
                night.fleet,
                lake=night.lake,
                run_id=night.run.run_id,
                epoch=epoch,
                unused_salt=digest([label, "fingerprint"]),
                meter=meter,
                tolerance=night.run.policy.logprob_tolerance,
                deadline_s=deadline_s,
            )
            for problem in check.contradictions:
                _log.warning("%s: %s", replica.name, problem)
            refused = await _load_adapters(engine, night.fleet, rows, deadline_s)
        except RetryLaterError:
            return [_twin(night, row, epoch, error=Reason.ENGINE_UNAVAILABLE) for row in rows], meter.computed_tokens
        twins = []
        for row in rows:
            kept = night.twins.get((row.item_id, replica.name))
            if kept is not None and kept.error is None and epoch is not None and kept.replica_epoch == epoch:
                twins.append(kept)
            elif row.adapter in refused:
                twins.append(_twin(night, row, epoch, error=refused[row.adapter]))
            else:
                twins.append(await _ask(night, row, epoch, meter, label))
        return twins, meter.computed_tokens


async def _ask(night: Night, row: PlanRow, epoch: str | None, meter: Meter, label: str) -> TwinResult:
    error: str = Reason.ENGINE_UNAVAILABLE
    for turn in range(_TRIES):
        request = GenerationRequest(
            PromptBody(token_ids=night.token_ids(row)),
            row.adapter or row.model,
            max_tokens=night.run.policy.answer_tokens,
            cache_salt=night.other_salt(row, "twin", f"{label}:{turn}"),
            with_logprobs=True,
        )
        try:
            look = await meter.look(request)
        except RejectItemError as refusal:
            return _twin(night, row, epoch, error=refusal.reason)
        except RetryLaterError:
            continue
        answer = Answer.of(look.generation)
        return _twin(
            night,
            row,
            epoch,
            ttft_ms=look.generation.ttft_ms,
            cached_tokens=look.cached_tokens,
            answer_tokens=list(answer.tokens),
            answer_logprobs=list(answer.logprobs),
            answer_top_json=top_to_json(answer),
            error=Reason.CONTROL_HIT if look.cached_tokens else None,
        )
    return _twin(night, row, epoch, error=error)


async def _load_adapters(
    engine: Engine, fleet: FleetFile, rows: Sequence[PlanRow], deadline_s: float
) -> dict[str | None, str]:
    """Load the adapters that twins need, and return adapter → why not. What is listed elsewhere is left alone."""
    refused: dict[str | None, str] = {}
    listed = {adapter.name for adapter in await engine.adapters(deadline_s=deadline_s)}
    for name in sorted({row.adapter for row in rows if row.adapter is not None} - listed):
        spec = fleet.adapter(name)
        try:
            if spec is None:
                refused[name] = Reason.ADAPTER_UNKNOWN
            else:
                await engine.load_adapter(spec.name, spec.path, deadline_s=deadline_s)
        except RejectItemError as refusal:
            refused[name] = refusal.reason
    return refused


def _twin(night: Night, row: PlanRow, epoch: str | None, *, error: str | None, **measured: Any) -> TwinResult:
    nothing: dict[str, Any] = {
        "ttft_ms": None,
        "cached_tokens": None,
        "answer_tokens": [],
        "answer_logprobs": [],
        "answer_top_json": "",
    }
    return TwinResult(
        run_id=night.run.run_id,
        item_id=row.item_id,
        replica=row.replica or "",
        stratum=stratum_of(row),
        replica_epoch=epoch,
        prompt_tokens=len(night.token_ids(row)),
        error=error,
        **{**nothing, **measured},
    )
