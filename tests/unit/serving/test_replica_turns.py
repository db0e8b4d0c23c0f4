"""Turns on replicas, on a real Redis: one at a time, who waits longest first; a lost turn ends its work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis

from warmup_tasks.errors import RetryLaterError
from warmup_tasks.identity import lease_key, queue_key
from warmup_tasks.serving.replica_turns import ReplicaTurns

LEASE = lease_key("replica:r0")


def turns(client: redis.Redis, task: str, wait_s: float = 20, ttl_s: float = 30) -> ReplicaTurns:
    return ReplicaTurns(client, task, wait_s=wait_s, ttl_s=ttl_s)


@asynccontextmanager
async def somebody_holds(client: redis.Redis, replica: str = "r0") -> AsyncIterator[asyncio.Event]:
    """Another task has the turn until the event is set."""
    has_it, may_go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with turns(client, "somebody").on(replica):
            has_it.set()
            await may_go.wait()

    holder = asyncio.create_task(hold())
    await has_it.wait()
    yield may_go
    may_go.set()
    await holder


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 the condition lies in Redis
            await asyncio.sleep(0.01)


async def test_one_at_a_time_and_replicas_apart(redis_client: redis.Redis) -> None:
    inside, most = 0, 0

    async def work(task: str) -> None:
        nonlocal inside, most
        for _ in range(3):
            async with turns(redis_client, task).on("r0"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    async with somebody_holds(redis_client, "r1"):
        await asyncio.gather(work("a"), work("b"), work("c"))
    assert most == 1
    assert redis_client.exists(LEASE) == 0


async def test_who_waits_longest_comes_first(redis_client: redis.Redis) -> None:
    order: list[str] = []

    async def work(task: str) -> None:
        async with turns(redis_client, task).on("r0"):
            order.append(task)

    async with somebody_holds(redis_client) as may_go:
        waiting = []
        for number, task in enumerate("abc", start=1):
            waiting.append(asyncio.create_task(work(task)))
            await until(lambda n=number: redis_client.zcard(queue_key("replica:r0", "arrived")) == n)
        may_go.set()
        await asyncio.gather(*waiting)
    assert order == ["a", "b", "c"]


async def test_who_waits_no_more_keeps_nobody_waiting(redis_client: redis.Redis) -> None:
    async with somebody_holds(redis_client):
        with pytest.raises(RetryLaterError, match="others work on r0; me waited 0 s in vain"):
            async with turns(redis_client, "me", wait_s=0).on("r0"):
                pass
        assert redis_client.zcard(queue_key("replica:r0", "arrived")) == 0
        redis_client.zadd(queue_key("replica:r0", "arrived"), {"killed": 1})
        redis_client.zadd(queue_key("replica:r0", "asked"), {"killed": 1})
    async with turns(redis_client, "me").on("r0"):
        assert 0 < redis_client.pttl(LEASE) <= 30_000


async def test_a_turn_is_renewed_while_it_lasts(redis_client: redis.Redis) -> None:
    async with turns(redis_client, "me", ttl_s=0.6).on("r0"):
        before = redis_client.hget(LEASE, "token")
        redis_client.pexpire(LEASE, 400)
        await until(lambda: redis_client.pttl(LEASE) > 400)
        assert redis_client.hget(LEASE, "token") == before
    assert redis_client.exists(LEASE) == 0


async def test_a_lost_turn_ends_the_work_and_leaves_the_new_holder_alone(redis_client: redis.Redis) -> None:
    is_ended = False

    async def work() -> None:
        nonlocal is_ended
        async with turns(redis_client, "me", ttl_s=0.3).on("r0"):
            redis_client.delete(LEASE)
            redis_client.hset(LEASE, mapping={"holder": "you", "token": "1"})
            try:
                await asyncio.Event().wait()
            finally:
                is_ended = True

    with pytest.raises(RetryLaterError, match="me lost its turn on r0"):
        await work()
    assert is_ended
    assert redis_client.hget(LEASE, "holder") == b"you"
    redis_client.delete(LEASE)


async def test_an_error_of_the_work_gives_the_turn_back_and_stays_what_it_is(redis_client: redis.Redis) -> None:
    for error in (ZeroDivisionError, TimeoutError):
        with pytest.raises(error):
            async with turns(redis_client, "me").on("r0"):
                raise error
        assert redis_client.exists(LEASE) == 0
