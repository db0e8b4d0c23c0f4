"""Generating full answers at temperature 0, on whichever replica can: what responses and QA pairs have in common.

Answers are dealt over the replicas of their profile, and generated in turns on each; what one replica does not answer
goes on to the next. So many answers as make a turn are stored together.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import groupby

from warmup_tasks.engines.attempts import generate
from warmup_tasks.engines.base import Engine, Generation, GenerationRequest
from warmup_tasks.errors import RejectItemError, RetryLaterError
from warmup_tasks.identity import digest
from warmup_tasks.items import ItemKind, Outcome, PlanRow, PromptBody, Reason
from warmup_tasks.lake.records import Key, key_of
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import StoredValue
from warmup_tasks.warming.work import Attempt, Work, by_adapter, in_order, together

Make = Callable[[PlanRow, Generation, datetime], StoredValue]
"""Makes the value of a row from its answer, whose generation began at that time."""
Known = Callable[[PlanRow, datetime], StoredValue | None]
"""Makes the value of a row without an engine, where that can be done."""

ROWS_A_TURN, TURN_S = 32, 2.0
"""A turn is given back after so many answers of one adapter, or after so many more as fit into so many seconds: others
wait meanwhile, and where answers come fast, waiting for turns must not take longer than they do."""


async def warm_answers(
    work: Work, rows: Sequence[PlanRow], make: Make, known: Known = lambda *_: None
) -> dict[Key, Attempt]:
    """Answer every row on a replica of its profile; replicas side by side, ``concurrency`` under way on each.

    ``known`` is asked first, and once more when it is the row's turn: another shard may have found the answer.

    Raises:
        RetryLaterError: others work on a replica for too long, or Redis does not answer.
        GiveUpError: the values do not fit into Redis.
    """
    attempts = _without_engine(work, rows, known)
    waiting = {key_of(row): list(_serving(work, row)) for row in rows}
    for row in rows:
        if not waiting[key_of(row)] and key_of(row) not in attempts:
            attempts[key_of(row)] = work.stopped(Outcome.REJECTED, Reason.DEPENDENCY_FAILED, work.now())
    while left := [row for row in rows if key_of(row) not in attempts]:
        dealt: dict[str, list[PlanRow]] = defaultdict(list)
        for row in left:
            dealt[waiting[key_of(row)].pop(0)].append(row)
        parts = await together([_on_replica(work, name, members, make, known) for name, members in dealt.items()])
        attempts |= {
            key: done
            for part in parts
            for key, done in part.items()
            if done.outcome is not Outcome.FAILED or not waiting[key]
        }
    return attempts


def finish_reason(work: Work, answer: Generation) -> str | None:
    """Return ``length`` for an answer that was cut at the limit, ``stop`` for a whole one, None where unknown."""
    if answer.completion_tokens is None:
        return None
    return "length" if answer.completion_tokens >= work.run.policy.response_tokens else "stop"


async def _on_replica(
    work: Work, replica: str, rows: Sequence[PlanRow], make: Make, known: Known
) -> dict[Key, Attempt]:
    engine = await work.engine(replica)
    made: list[StoredValue] = []

    async def one(row: PlanRow) -> Attempt:
        started_at = work.now()
        if (value := known(row, started_at)) is not None:
            made.append(value)
            return _unasked(work, started_at)
        try:
            answer = await _full_answer(work, row, engine)
        except RejectItemError as error:
            return work.stopped(Outcome.REJECTED, error.reason, started_at)
        except RetryLaterError:
            return work.stopped(Outcome.FAILED, Reason.ENGINE_UNAVAILABLE, started_at)
        made.append(make(row, answer, started_at))
        return Attempt(
            Outcome.WARMED,
            started_at,
            work.now(),
            prompt_tokens=answer.prompt_tokens,
            computed_tokens=_computed_tokens(answer),
            ttft_ms=answer.ttft_ms,
        )

    attempts: dict[Key, Attempt] = {}
    parts, clock = deque(_parts(rows)), asyncio.get_running_loop().time
    while parts:
        async with work.turn_on(replica):
            ends = clock() + TURN_S
            while parts:
                attempts |= await in_order(parts.popleft(), work.run.parameters.concurrency, one)
                _store(work, made)
                made.clear()
                if clock() >= ends:
                    break
    return attempts


def _without_engine(work: Work, rows: Sequence[PlanRow], known: Known) -> dict[Key, Attempt]:
    started_at = work.now()
    values = {key_of(row): value for row in rows if (value := known(row, started_at)) is not None}
    _store(work, list(values.values()))
    return {key: _unasked(work, started_at) for key in values}


def _store(work: Work, values: Sequence[StoredValue]) -> None:
    if values:
        ValueStore(work.redis).put_many(values, work.now(), deadline_s=work.deadline_s)


def _unasked(work: Work, started_at: datetime) -> Attempt:
    return Attempt(Outcome.WARMED, started_at, work.now(), prompt_tokens=0, computed_tokens=0)


def _computed_tokens(answer: Generation) -> int | None:
    if answer.prompt_tokens is None or answer.cached_tokens is None:
        return None
    return answer.prompt_tokens - answer.cached_tokens


async def _full_answer(work: Work, row: PlanRow, engine: Engine) -> Generation:
    body = PromptBody.model_validate_json(work.plan.payload(row).body_json or "{}")
    request = GenerationRequest(
        body, row.adapter or row.model, max_tokens=work.run.policy.response_tokens, cache_salt=row.cache_salt
    )
    return await generate(engine, request, deadline_s=work.deadline_s, tries=2)


def _parts(rows: Sequence[PlanRow]) -> Iterator[list[PlanRow]]:
    for _, members in groupby(by_adapter(rows), key=lambda row: row.adapter):
        every = list(members)
        yield from (every[start : start + ROWS_A_TURN] for start in range(0, len(every), ROWS_A_TURN))


def _serving(work: Work, row: PlanRow) -> Sequence[str]:
    """Return the replicas that can answer, beginning at a place that depends on the item: work spreads evenly."""
    wanted = set(work.run.request.replicas)
    serving = [
        replica.name
        for replica in work.fleet.replicas
        if replica.profile == row.profile and replica.model == row.model and (not wanted or replica.name in wanted)
    ]
    if row.adapter is not None:
        loaded = {
            receipt.replica
            for receipt in work.earlier.values()
            if receipt.kind is ItemKind.ADAPTER and receipt.adapter == row.adapter and receipt.outcome is Outcome.WARMED
        }
        serving = [name for name in serving if name in loaded]
    if not serving:
        return []
    start = int(digest(row.item_id)[:8], 16) % len(serving)
    return [*serving[start:], *serving[:start]]
