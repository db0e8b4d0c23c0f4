"""A lease on a shared resource: one holder at a time, for a limited time, with a fencing token.

Airflow's pools undercount deferred tasks and queues bound nothing across hosts, so what must not run twice takes a
lease. A holder that was silent for too long has lost it; the fencing token, which grows with every grant, lets the
resource tell a late message of an old holder from one of the present holder.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis

from warmup_tasks.errors import RetryLaterError
from warmup_tasks.identity import fence_key, lease_key
from warmup_tasks.serving.connection import store_errors

_PAUSE_S = 0.1
_FENCE_LIFE_MS = 7 * 24 * 3600 * 1000

# The token is the server's clock in microseconds, or one more than the last: it grows even when the last is forgotten.
_ACQUIRE = """
local held = redis.call('HMGET', KEYS[1], 'holder', 'token')
if held[1] == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return held[2]
end
if held[1] then return false end
local time = redis.call('TIME')
local token = tonumber(time[1]) * 1000000 + tonumber(time[2])
token = math.max(token, tonumber(redis.call('GET', KEYS[2]) or '0') + 1)
token = string.format('%.0f', token)
redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'token', token)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
"""
_RENEW = """
local held = redis.call('HMGET', KEYS[1], 'holder', 'token')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
_RELEASE = """
local held = redis.call('HMGET', KEYS[1], 'holder', 'token')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then return 0 end
return redis.call('DEL', KEYS[1])
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease. ``token`` grows with every grant of the same name."""

    name: str
    holder: str
    token: int


class Leases:
    """Grants leases. Every call raises ``RetryLaterError`` while Redis is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._acquire = client.register_script(_ACQUIRE)
        self._renew = client.register_script(_RENEW)
        self._release = client.register_script(_RELEASE)

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Take a lease for ``ttl_s`` seconds, or return None while somebody else has it.

        Args:
            name: of the resource.
            holder: unique to the caller, such as a task's run and try; the same holder gets its own lease again.
            ttl_s: after which the lease ends unless renewed.
        """
        with store_errors("taking a lease"):
            args: list[str | int] = [holder, round(ttl_s * 1000), _FENCE_LIFE_MS]
            token = self._acquire(keys=[lease_key(name), fence_key(name)], args=args)
        return Lease(name, holder, int(token)) if token else None

    def renew(self, lease: Lease, ttl_s: float) -> bool:
        """Extend a lease; False when it was lost: stop using the resource."""
        with store_errors("renewing a lease"):
            args: list[str | int] = [lease.holder, lease.token, round(ttl_s * 1000)]
            return bool(self._renew(keys=[lease_key(lease.name)], args=args))

    def release(self, lease: Lease) -> bool:
        """Give a lease back; False, and nothing changes, when it was lost to somebody else."""
        with store_errors("releasing a lease"):
            return bool(self._release(keys=[lease_key(lease.name)], args=[lease.holder, lease.token]))

    def holder(self, name: str) -> str | None:
        """Return who holds a lease now, or None."""
        with store_errors("asking for a lease"):
            found = self._client.hget(lease_key(name), "holder")
        return found.decode() if isinstance(found, bytes) else None

    @contextmanager
    def held(self, name: str, holder: str, *, ttl_s: float, deadline_s: float) -> Iterator[Lease]:
        """Hold a lease for the length of a block, waiting for it up to ``deadline_s``.

        Raises:
            RetryLaterError: somebody else had it all the time.
        """
        give_up_at = time.monotonic() + deadline_s
        while (lease := self.acquire(name, holder, ttl_s)) is None:
            if time.monotonic() > give_up_at:
                raise RetryLaterError(f"somebody else holds the lease {name!r}; tried for {deadline_s:g} s")
            time.sleep(_PAUSE_S)
        try:
            yield lease
        finally:
            self.release(lease)
