"""Tombstones: items that an operator took out and that no plan may bring back until the tombstone ends (spec 2.2).

Set before the item's mark is voided, so that a night that is planned meanwhile sees it. What a plan does with them is
decided in ``planning/``.
"""

from datetime import datetime, timedelta

import redis

from warmup_tasks.identity import TOMBSTONE_PREFIX, tombstone_key
from warmup_tasks.items import Record
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.namespaces import NamespaceIndex
from warmup_tasks.serving.records import chunks, decode, life_ms

TOMBSTONE_SCHEMA = 1
DEFAULT_LIFE = timedelta(days=30)


class Tombstone(Record):
    """One item that stays out until ``expires_at``."""

    schema_version: int = TOMBSTONE_SCHEMA
    item_id: str
    set_at: datetime
    expires_at: datetime


class TombstoneStore:
    """All tombstones. Every call raises ``RetryLaterError`` while Redis is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._index = NamespaceIndex(client)

    def put(self, item_id: str, now: datetime, life: timedelta = DEFAULT_LIFE) -> Tombstone:
        """Keep an item out for ``life`` from now on; a second call renews it."""
        stone = Tombstone(item_id=item_id, set_at=now, expires_at=now + life)
        key = tombstone_key(item_id)
        with store_errors("setting a tombstone"):
            self._index.enter(TOMBSTONE_PREFIX, {key: stone.expires_at}, now)
            self._client.set(key, stone.model_dump_json(), px=life_ms(stone.expires_at, now))
        return stone

    def remove(self, item_id: str) -> bool:
        """Let an item be planned again; False when there was no tombstone."""
        with store_errors("removing a tombstone"):
            return self._index.remove(TOMBSTONE_PREFIX, [tombstone_key(item_id).removeprefix(TOMBSTONE_PREFIX)]) > 0

    def item_ids(self) -> frozenset[str]:
        """Return the items that are kept out now."""
        found: set[str] = set()
        with store_errors("reading tombstones"):
            for keys in self._index.keys(TOMBSTONE_PREFIX):
                for chunk in chunks(keys):
                    stones = (decode(raw, Tombstone, TOMBSTONE_SCHEMA) for raw in self._client.mget(chunk))
                    found.update(stone.item_id for stone in stones if stone is not None)
        return frozenset(found)
