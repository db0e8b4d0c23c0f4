"""Epochs in Redis: which life of its cache a replica is in, said by the agent and by nobody else (spec 0, 1.2).

A record lives at most 15 s, so that a silent agent leaves the epoch unknown, and an unknown epoch is not ready. How an
epoch is derived from an engine lives in ``engines/``; who watches lives in ``agent/``.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import redis

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import epoch_key, generation_key, observation_key
from warmup_tasks.items import Record
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.records import decode

EPOCH_SCHEMA = 1
MAX_TTL_S = 15.0
REMEMBERED_FOR = timedelta(days=7)  # longer than any mark, so that no later epoch can look like the one of a mark
_PUBLISH = """
if (redis.call('GET', KEYS[2]) or '0') ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
_BEGIN = """
local generation = redis.call('INCR', KEYS[2])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[1])
return generation
"""


class EpochRecord(Record):
    """What the agent saw of a replica at ``observed_at``; ``detail`` is for people."""

    schema_version: int = EPOCH_SCHEMA
    replica: str
    epoch: str
    observed_at: datetime
    is_healthy: bool = True
    detail: str = ""


class Observation(Record):
    """One replica's process as last seen; counters are in tokens since ``process_start_s``.

    ``is_awake`` is False while it sleeps or is paused. ``several_seen_at`` is when an older process last answered after
    a newer one: several of them share the address.
    """

    schema_version: int = EPOCH_SCHEMA
    replica: str
    process_start_s: float
    prefix_queries_tokens: float
    prompt_tokens: float
    is_awake: bool = True
    several_seen_at: datetime | None = None


class EpochStore:
    """Published epochs, generations, and the agent's last observations."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._publish = client.register_script(_PUBLISH)
        self._begin = client.register_script(_BEGIN)

    def publish(self, record: EpochRecord, *, generation: int = 0, ttl_s: float = 10.0) -> bool:
        """Publish a replica's epoch for ``ttl_s`` seconds.

        Args:
            record: what was seen.
            generation: the generation that the epoch was derived with.
            ttl_s: at most 15.

        Returns:
            False, and nothing is published, when a newer generation began in between: derive the epoch again.
        """
        if not 0 < ttl_s <= MAX_TTL_S:
            raise ConfigurationError(f"an epoch may live at most {MAX_TTL_S:g} s unrenewed, not {ttl_s:g}")
        keys = [epoch_key(record.replica), generation_key(record.replica)]
        args: list[str | int] = [generation, record.model_dump_json(), round(ttl_s * 1000), _ms(REMEMBERED_FOR)]
        with store_errors("publishing an epoch"):
            return bool(self._publish(keys=keys, args=args))

    def read(self, replica: str) -> EpochRecord | None:
        """Return the published epoch, or None: unknown."""
        return self.read_many([replica])[0]

    def read_many(self, replicas: Sequence[str]) -> list[EpochRecord | None]:
        """Return the published epochs of several replicas in their order; None is unknown."""
        if not replicas:
            return []
        with store_errors("reading epochs"), self._client.pipeline(transaction=False) as pipe:
            for replica in replicas:  # their keys may lie on several nodes
                pipe.get(epoch_key(replica))
            return [decode(raw, EpochRecord, EPOCH_SCHEMA) for raw in pipe.execute()]

    def forget(self, replica: str) -> None:
        """Withdraw a replica's epoch at once: unknown from here on."""
        with store_errors("withdrawing an epoch"):
            self._client.delete(epoch_key(replica))

    def generation(self, replica: str) -> int:
        """Return how often the replica lost its cache without a new process."""
        with store_errors("reading a generation"):
            return int(self._client.get(generation_key(replica)) or 0)

    def begin_generation(self, replica: str) -> int:
        """Say that a replica's cache was emptied (reset, sleep, reload): its epoch ends now.

        Whoever empties a cache on purpose calls this first, since the engine's metrics do not show it; the agent calls
        it when counters fall or the engine goes to sleep. Until the agent has published the new epoch, it is unknown.
        """
        with store_errors("beginning a generation"):
            keys = [epoch_key(replica), generation_key(replica)]
            return int(self._begin(keys=keys, args=[_ms(REMEMBERED_FOR)]))

    def last_seen(self, replica: str) -> Observation | None:
        """Return what an agent last kept of a replica, or None."""
        with store_errors("reading an observation"):
            return decode(self._client.get(observation_key(replica)), Observation, EPOCH_SCHEMA)

    def keep(self, seen: Observation) -> None:
        """Keep an observation in place of the one before it."""
        with store_errors("keeping an observation"):
            self._client.set(observation_key(seen.replica), seen.model_dump_json(), ex=REMEMBERED_FOR)


def _ms(span: timedelta) -> int:
    return round(span.total_seconds() * 1000)
