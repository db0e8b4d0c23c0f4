"""What the warmers of all kinds share: the work at hand, an attempt's outcome, and how many go at once.

Here live the types; each kind's own way of being warmed is one file beside this one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Protocol, Self, TypeVar

import redis

from warmup_tasks.engines.base import Engine
from warmup_tasks.errors import WarmupError
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.items import Outcome, PlanRow, Reason, Receipt
from warmup_tasks.lake.records import Key, Plan
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.replica_turns import ReplicaTurns

OpenEngine = Callable[[ReplicaSpec], Engine]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Attempt:
    """What happened to one item: outcome, the reason where it is not plain success, and what it cost.

    ``epoch`` is that of the replica while the item was warmed; None where there is none or it is unknown.
    """

    outcome: Outcome
    started_at: datetime
    finished_at: datetime
    reason: str = ""
    epoch: str | None = None
    prompt_tokens: int | None = None
    computed_tokens: int | None = None
    ttft_ms: float | None = None


@dataclass
class Work:
    """One shard at work. Use as an asynchronous context manager: it keeps the engines open that it opened."""

    lake: Lake
    run: Run
    shard: str
    fleet: FleetFile
    plan: Plan
    earlier: dict[Key, Receipt]
    redis: redis.Redis
    open_engine: OpenEngine
    now: Callable[[], datetime]
    turns: ReplicaTurns = field(init=False)
    _started_at: datetime = field(init=False)
    _open: dict[str, Engine] = field(init=False, default_factory=dict)
    _stack: AsyncExitStack = field(init=False, default_factory=AsyncExitStack)

    @property
    def deadline_s(self) -> float:
        """The time for one item, repetitions included."""
        return self.run.policy.request_deadline_s

    @property
    def began_at(self) -> datetime:
        """When the run's first item was begun, as far as receipts tell; else when this shard was."""
        return min((receipt.started_at for receipt in self.earlier.values()), default=self._started_at)

    async def engine(self, replica: str) -> Engine:
        """Return the engine of a replica, opened once."""
        return await self.engine_at(self.fleet.replica(replica))

    async def engine_at(self, where: ReplicaSpec) -> Engine:
        """Return the engine at an address that need not be in the fleet, opened once."""
        if where.url not in self._open:
            self._open[where.url] = await self._stack.enter_async_context(self.open_engine(where))
        return self._open[where.url]

    def epoch(self, replica: str) -> str | None:
        """Return the epoch that the agent publishes now, or None: unknown."""
        record = EpochStore(self.redis).read(replica)
        return record.epoch if record else None

    def turn_on(self, replica: str) -> AbstractAsyncContextManager[None]:
        """Hold the turn on a replica, or on the GPU that it shares, for the length of a block."""
        return self.turns.on(self.fleet.replica(replica).turn)

    def skipped(self, reason: Reason) -> Attempt:
        """Return the attempt of an item that is not tried."""
        moment = self.now()
        return Attempt(Outcome.SKIPPED, moment, moment, reason)

    def stopped(self, outcome: Outcome, reason: str, started_at: datetime, epoch: str | None = None) -> Attempt:
        """Return the attempt of an item that was tried without success."""
        return Attempt(outcome, started_at, self.now(), reason, epoch)

    def __post_init__(self) -> None:
        task = f"{self.run.run_id}.{self.shard}"
        self.turns = ReplicaTurns(self.redis, task, wait_s=self.run.policy.turn_wait_s)

    async def __aenter__(self) -> Self:
        self._started_at = self.now()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


class Warmer(Protocol):
    """Warms the items of one kind in one shard, in the order given, and answers for each.

    Raises ``RetryLaterError`` only when nothing of the shard can go on; what befalls one item is that item's attempt.
    """

    async def __call__(self, work: Work, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
        """Return one attempt a row."""
        ...


async def in_order(
    rows: Sequence[PlanRow], limit: int, do: Callable[[PlanRow], Awaitable[Attempt]]
) -> dict[Key, Attempt]:
    """Do every row, started in order, at most ``limit`` under way: the last row of the plan ends among the last.

    Rows of different adapters are never under way together: an engine that computes them in one batch may be slower,
    and vLLM on a CPU leaves wrong KV blocks of the base model behind.
    """
    attempts: dict[Key, Attempt] = {}
    for _, members in groupby(rows, key=lambda row: row.adapter):
        attempts |= await _side_by_side(list(members), limit, do)
    return attempts


async def _side_by_side(
    rows: Sequence[PlanRow], limit: int, do: Callable[[PlanRow], Awaitable[Attempt]]
) -> dict[Key, Attempt]:
    gate = asyncio.Semaphore(limit)

    async def one(row: PlanRow) -> tuple[Key, Attempt]:
        async with gate:
            return (row.item_id, row.replica), await do(row)

    return dict(await together([one(row) for row in rows]))


async def together(jobs: Sequence[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Do all side by side and return their results; the first of this library's errors ends all and is raised bare."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(job) for job in jobs]
    except* WarmupError as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


def by_adapter(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Return rows whose order does not matter so that each adapter's stand together."""
    return sorted(rows, key=lambda row: row.adapter or "")


def _first(errors: BaseExceptionGroup[WarmupError]) -> WarmupError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
