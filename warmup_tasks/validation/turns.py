"""Who is measured when: hosts side by side, the replicas of one host in turn, so that none disturbs another."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from warmup_tasks.fleet_file import ReplicaSpec

ResultT = TypeVar("ResultT")


async def in_turn(replicas: Sequence[ReplicaSpec], do: Callable[[ReplicaSpec], Awaitable[ResultT]]) -> list[ResultT]:
    """Return ``do`` of each replica, in the order given."""
    turns: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def one(replica: ReplicaSpec) -> ResultT:
        async with turns[urlsplit(replica.url).hostname]:
            return await do(replica)

    return list(await asyncio.gather(*(one(replica) for replica in replicas)))
