"""Writing and reading values in bulk: pipelined, within Redis' memory, resumed after a lost connection (spec 1.2).

A value counts for nothing until its mark is published, so a load that stops half-way leaves nothing half-ready. Which
values a reader may see lives in ``reader.py``.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import redis

from warmup_tasks.errors import ContractError, GiveUpError, RetryLaterError
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.namespaces import Namespace, NamespaceIndex
from warmup_tasks.serving.records import chunks
from warmup_tasks.serving.values import StoredValue, decode_value

log = logging.getLogger(__name__)

_KEY_OVERHEAD_BYTES = 250  # entry in the key space and its expiry, index entry, allocator: measured, rounded up
_PATIENCE_WITH_EVICTION = 2  # a server that restarts unnoticed between two chunks looks the same, once
_PAUSE_S = 0.1
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a bulk write did: values written, their size in Redis as estimated, and how often it had to resume."""

    written: int
    estimated_bytes: int
    resumed: int


class ValueStore:
    """The values of all tenants and identities."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._index = NamespaceIndex(client)

    def put_many(
        self,
        values: Sequence[StoredValue],
        now: datetime,
        *,
        deadline_s: float = 60.0,
        on_progress: Callable[[int], None] | None = None,
    ) -> WriteReport:
        """Write values, each once, and prove that all of them are there.

        Memory is checked before the first write. A lost connection is waited for; then only what is missing is
        written, also when Redis came back empty.

        Args:
            values: of any kinds, tenants and identities; of two with one key the last one counts.
            now: by the wall clock; lives begin here.
            deadline_s: for the whole load, waiting included.
            on_progress: called with the number of values written so far.

        Raises:
            GiveUpError: they do not fit into Redis' memory, or Redis evicts what was just written.
            RetryLaterError: Redis did not come back within the deadline; calling again resumes.
        """
        wanted = {value.key: value for value in values}
        give_up_at = time.monotonic() + deadline_s
        _patiently(lambda: self._check_memory(wanted), give_up_at)
        missing, resumed, dropped = list(wanted.values()), 0, 0
        while missing:
            lost = self._write_all(missing, now, len(wanted) - len(missing), on_progress)
            missing = _patiently(lambda: self._absent(wanted), give_up_at)
            if lost is not None and time.monotonic() > give_up_at:
                raise lost
            dropped += lost is None and bool(missing)
            if dropped == _PATIENCE_WITH_EVICTION:
                raise GiveUpError(
                    f"Redis drops values that were just written ({len(missing)} of {len(wanted)} are gone): it evicts "
                    "under memory pressure; raise maxmemory or plan fewer items"
                )
            resumed += bool(missing)
        size = sum(estimated_bytes(value) for value in wanted.values())
        return WriteReport(written=len(wanted), estimated_bytes=size, resumed=resumed)

    def existing(self, keys: Sequence[str]) -> set[str]:
        """Return those of the keys that are there: what a repeated task need not compute again."""
        found: set[str] = set()
        with store_errors("looking for values"):
            for chunk in chunks(keys):
                with self._client.pipeline(transaction=False) as pipe:
                    for key in chunk:
                        pipe.exists(key)
                    found |= {key for key, there in zip(chunk, pipe.execute(), strict=True) if there}
        return found

    def get(self, key: str) -> StoredValue | None:
        """Return a value as it is stored, marked or not; None where there is none.

        Raises:
            ContractError: what is stored there is no value of this schema version.
        """
        with store_errors("reading a value"):
            raw = self._client.get(key)
        if raw is None:
            return None
        if not isinstance(raw, bytes):
            raise ContractError("values need a client that answers in bytes: use serving.connect")
        return decode_value(raw)

    def _absent(self, wanted: Mapping[str, StoredValue]) -> list[StoredValue]:
        there = self.existing(list(wanted))
        return [value for key, value in wanted.items() if key not in there]

    def _write_all(
        self, values: Sequence[StoredValue], now: datetime, done: int, on_progress: Callable[[int], None] | None
    ) -> RetryLaterError | None:
        for chunk in chunks(values):
            try:
                self._write(chunk, now)
            except RetryLaterError as error:
                log.warning("Redis went away after %d values; waiting for it", done)
                return error
            done += len(chunk)
            if on_progress:
                on_progress(done)
        return None

    def _write(self, values: Sequence[StoredValue], now: datetime) -> None:
        listed: dict[Namespace, datetime | None] = {}
        entered: dict[str, dict[str, datetime]] = defaultdict(dict)
        for value in values:
            end = now + timedelta(seconds=value.ttl_s) if value.ttl_s is not None else None
            listed[value.where] = end
            if end is not None:
                entered[value.prefix][value.key] = end
        with store_errors("writing values"), self._client.pipeline(transaction=False) as pipe:
            self._index.register(pipe, listed, now)
            for prefix, ends in entered.items():
                self._index.enter(pipe, prefix, ends, now)
            for value in values:
                pipe.set(value.key, value.encode(), ex=value.ttl_s)
            pipe.execute()

    def _check_memory(self, wanted: Mapping[str, StoredValue]) -> None:
        values = self._absent(wanted)
        needed = sum(estimated_bytes(value) for value in values)
        with store_errors("asking for Redis' memory"):
            memory = self._client.info("memory")
        limit, used = int(memory.get("maxmemory", 0)), int(memory["used_memory"])
        if limit and used + needed > limit:
            raise GiveUpError(
                f"{len(values)} values need {needed / 1e6:.1f} MB, but Redis has {max(0, limit - used) / 1e6:.1f} MB "
                f"left of its maxmemory of {limit / 1e6:.1f} MB; raise maxmemory or plan fewer items. "
                "Nothing was written"
            )


def _patiently(action: Callable[[], ResultT], give_up_at: float) -> ResultT:
    while True:
        try:
            return action()
        except RetryLaterError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(_PAUSE_S)


def estimated_bytes(value: StoredValue) -> int:
    """Return what a value takes in Redis, key, index entry and the allocator's rounding included."""
    return _allocated(len(value.encode())) + _allocated(len(value.key)) + _KEY_OVERHEAD_BYTES


def _allocated(size: int) -> int:
    # Redis' allocator has four sizes between two powers of two.
    step = max(16, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // step) * step
