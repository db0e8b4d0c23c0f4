"""Warming KV prefixes: one token each, in the plan's order, so that the hottest come last and stay (spec 4.2, 6.3).

An item that the engine refuses stops alone; a replica that does not answer at all stops the shard, to be tried again.
"""

from collections.abc import Sequence
from dataclasses import replace

from warmup_tasks.engines.attempts import generate, scrape
from warmup_tasks.engines.base import Engine, GenerationRequest
from warmup_tasks.errors import RejectItemError, RetryLaterError
from warmup_tasks.items import Outcome, PlanRow, PromptBody, Reason
from warmup_tasks.lake.records import Key
from warmup_tasks.warming.adapters import ensure_resident
from warmup_tasks.warming.work import Attempt, Work, in_order


async def warm_prefixes(work: Work, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
    """Prefill every prefix of a shard on its replica, in order, ``parameters.concurrency`` under way.

    What was warmed before the replica lost its cache is not warm: it fails with ``EPOCH_CHANGED``. An unknown epoch
    does not keep an item from being warmed, only from ever being ready.

    Raises:
        RetryLaterError: a replica does not answer at all, or others work on it for too long.
    """
    attempts: dict[Key, Attempt] = {}
    for replica in sorted({row.replica or "" for row in rows}):
        async with work.turn_on(replica):
            attempts |= await _on_replica(work, replica, [row for row in rows if row.replica == replica])
    return attempts


async def _on_replica(work: Work, replica: str, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
    engine = await work.engine(replica)
    seen = await scrape(engine, deadline_s=work.deadline_s)
    process_start_s = seen.process_start_s
    fitting = what_fits(rows, seen.capacity_blocks * seen.block_size)
    refused = {
        adapter: await ensure_resident(work, engine, adapter, replica)
        for adapter in sorted({row.adapter for row in rows if row.adapter is not None})
    }

    async def one(row: PlanRow) -> Attempt:
        if row.item_id not in fitting:
            return work.skipped(Reason.OVER_CAPACITY)
        if row.adapter is not None and (why := refused[row.adapter]) is not None:
            return work.skipped(Reason(why))
        return await _warm(work, engine, row, replica)

    attempts = await in_order(rows, work.run.parameters.concurrency, one)
    is_same_process = await _process_start(work, engine) == process_start_s
    last_epoch = work.epoch(replica)
    return {key: _judged(done, last_epoch, is_same_process) for key, done in attempts.items()}


async def _warm(work: Work, engine: Engine, row: PlanRow, replica: str) -> Attempt:
    started_at, before = work.now(), work.epoch(replica)
    request = prefix_request(work, row)
    try:
        answer = await generate(engine, request, deadline_s=work.deadline_s)
    except RejectItemError as error:
        return work.stopped(Outcome.REJECTED, error.reason, started_at, before)
    except RetryLaterError:
        await _process_start(work, engine)
        return work.stopped(Outcome.FAILED, Reason.ENGINE_UNAVAILABLE, started_at, before)
    prompt_tokens = answer.prompt_tokens if answer.prompt_tokens is not None else row.prompt_tokens
    return Attempt(
        Outcome.WARMED,
        started_at,
        work.now(),
        epoch=before if before == work.epoch(replica) else None,
        prompt_tokens=prompt_tokens,
        computed_tokens=None if answer.cached_tokens is None else prompt_tokens - answer.cached_tokens,
        ttft_ms=answer.ttft_ms,
    )


def what_fits(rows: Sequence[PlanRow], capacity_tokens: int) -> set[str]:
    """Return the items of a replica's list that its cache can hold when all is done: the last ones, which are hottest.

    A plan keeps within the capacity that was surveyed; an engine that came back smaller would evict the colder ones by
    the hotter. The item at the border is warmed: its head stays.

    Args:
        rows: in the plan's order; tokens that two items share are counted with the first one.
        capacity_tokens: of the engine, now.
    """
    fitting: set[str] = set()
    used = 0
    for row in reversed(rows):
        if used >= capacity_tokens:
            break
        fitting.add(row.item_id)
        used += row.unique_tokens
    return fitting


def prefix_request(work: Work, row: PlanRow) -> GenerationRequest:
    """Return the request that warms a prefix: its tokens, the live salt, one token to generate."""
    body = PromptBody(token_ids=work.plan.payload(row).token_ids)
    return GenerationRequest(body, row.adapter or row.model, max_tokens=1, cache_salt=row.cache_salt)


async def _process_start(work: Work, engine: Engine) -> float:
    return (await scrape(engine, deadline_s=work.deadline_s)).process_start_s


def _judged(done: Attempt, last_epoch: str | None, is_same_process: bool) -> Attempt:
    if done.outcome is not Outcome.WARMED:
        return done
    if not is_same_process or (done.epoch is not None and last_epoch is not None and done.epoch != last_epoch):
        return replace(done, outcome=Outcome.FAILED, reason=Reason.EPOCH_CHANGED)
    if done.epoch is None or last_epoch is None:
        return replace(done, reason=Reason.EPOCH_UNKNOWN, epoch=None)
    return done
