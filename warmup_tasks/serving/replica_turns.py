"""Turns on replicas: of all tasks and runs, one at a time sends work to a replica, or to those that share a GPU.

Two tasks on one replica disturb each other's measurements, evict what the other is about to prove, and may put the base
model and an adapter into one batch, which leaves wrong blocks in vLLM's CPU build. So whoever generates takes a turn: a
lease, renewed while it is held, and a queue in which the one that waits longest comes first. Live traffic takes none.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import redis

from warmup_tasks.errors import RetryLaterError
from warmup_tasks.identity import queue_key
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.lease import Lease, Leases

TTL_S = 30.0
"""What a holder that died keeps others waiting."""
_PAUSE_S = 0.1
_RENEWAL_S = 1.0
_GONE_AFTER_MS = 5_000  # a waiter that has not asked for so long waits no more
_QUEUE_LIFE_MS = 60_000
_log = logging.getLogger(__name__)

_ASK = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, gone in ipairs(redis.call('ZRANGE', KEYS[2], '-inf', now - ARGV[2], 'BYSCORE')) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('ZREM', KEYS[2], gone)
end
redis.call('ZADD', KEYS[1], 'NX', time[1] * 1000000 + time[2], ARGV[1])
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return redis.call('ZRANGE', KEYS[1], 0, 0)[1] == ARGV[1] and 1 or 0
"""
_LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""


class ReplicaTurns:
    """The turns of one task.

    Args:
        client: of the serving store.
        task: what the holder is called in messages, such as its run and shard.
        wait_s: for a turn, before the task is to be tried again later.
        ttl_s: of the lease behind a turn; it is renewed three times as often.
    """

    def __init__(self, client: redis.Redis, task: str, *, wait_s: float, ttl_s: float = TTL_S) -> None:
        self._leases = Leases(client)
        self._ask, self._leave = client.register_script(_ASK), client.register_script(_LEAVE)
        self._task, self._wait_s, self._ttl_s = task, wait_s, ttl_s

    @asynccontextmanager
    async def on(self, replica: str) -> AsyncIterator[None]:
        """Hold the turn on a replica for the length of a block; the block is cancelled when the turn is lost.

        A turn inside a turn on the same replica would wait for itself. Replicas that share a GPU have one turn
        (``ReplicaSpec.turn``).

        Raises:
            RetryLaterError: others had it all the time, it was lost, or Redis is away.
        """
        lease = await self._taken(replica)
        try:
            async with asyncio.timeout(None) as scope:
                keeper = asyncio.create_task(self._keep(lease, scope))
                try:
                    yield
                finally:
                    keeper.cancel()
                    await asyncio.gather(keeper, return_exceptions=True)
        except TimeoutError:
            if not scope.expired():
                raise
            raise RetryLaterError(f"{self._task} lost its turn on {replica}: its lease could not be renewed") from None
        finally:
            await self._give_back(lease)

    async def _taken(self, replica: str) -> Lease:
        loop = asyncio.get_running_loop()
        name, holder = lease_of(replica), f"{self._task}:{secrets.token_hex(6)}"
        give_up_at = loop.time() + self._wait_s
        try:
            while (lease := await asyncio.to_thread(self._try, name, holder)) is None:
                if loop.time() >= give_up_at:
                    raise RetryLaterError(f"others work on {replica}; {self._task} waited {self._wait_s:g} s in vain")
                await asyncio.sleep(_PAUSE_S)
        finally:
            await asyncio.to_thread(self._leave_queue, name, holder)
        return lease

    def _try(self, name: str, holder: str) -> Lease | None:
        with store_errors("waiting for a turn"):
            is_first = self._ask(keys=_queue(name), args=[holder, _GONE_AFTER_MS, _QUEUE_LIFE_MS])
        return self._leases.acquire(name, holder, self._ttl_s) if is_first else None

    def _leave_queue(self, name: str, holder: str) -> None:
        try:
            with store_errors("leaving a queue"):
                self._leave(keys=_queue(name), args=[holder])
        except RetryLaterError as error:  # who does not ask any more is forgotten anyway
            _log.info("%s", error)

    async def _keep(self, lease: Lease, scope: asyncio.Timeout) -> None:
        """Renew the lease until it is lost, then end the block that it stands for."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._ttl_s
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            asked = loop.time()
            try:
                async with asyncio.timeout_at(max(ends, asked + _RENEWAL_S)):
                    is_held = await asyncio.to_thread(self._leases.renew, lease, self._ttl_s)
            except (RetryLaterError, TimeoutError):
                is_held = loop.time() < ends
            else:
                ends = asked + self._ttl_s
            if not is_held:
                scope.reschedule(loop.time())
                return

    async def _give_back(self, lease: Lease) -> None:
        try:
            await asyncio.to_thread(self._leases.release, lease)
        except RetryLaterError as error:
            _log.warning("%s: %s; it ends by itself within %g s", lease.name, error, self._ttl_s)


def lease_of(replica: str) -> str:
    """Return the name of the lease behind the turn on a replica."""
    return f"replica:{replica}"


def _queue(name: str) -> list[str]:
    return [queue_key(name, "arrived"), queue_key(name, "asked")]
