"""Collecting what nobody needs any more in Redis: namespaces that are empty, adapter entries that nobody declares.

Values and marks end by their TTL. What does not end by itself is collected here, after a time that the caller states.
Nothing that a reader could be given is touched: an entry without a mark is none.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime

import redis

from warmup_tasks.errors import ContractError
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Namespace, NamespaceIndex, Reach
from warmup_tasks.serving.store import ValueStore


@dataclass(frozen=True, slots=True)
class Collected:
    """What was collected, or would be: namespaces off the list, and adapter entries by key."""

    is_dry_run: bool
    namespaces: int
    adapter_entries: list[str] = field(default_factory=list)


class Collector:
    """Collects in the serving store."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._index = NamespaceIndex(client)
        self._values = ValueStore(client)
        self._marks = MarkStore(client)

    def collect(self, declared: Collection[str], older_than: datetime, *, is_dry_run: bool = False) -> Collected:
        """Remove adapter entries of identities that are not declared, and namespaces in which nothing is left.

        Args:
            declared: digests of the identities that the fleet declares; their adapter entries stay.
            older_than: entries that were written since stay: another fleet may have brought them.
            is_dry_run: say what would go and change nothing.

        Raises:
            RetryLaterError: Redis is away; collecting again goes on.
        """
        with store_errors("collecting"):
            listed = self._index.namespaces()
            old = [
                where for where in listed if where.identity_digest not in declared and self._is_old(where, older_than)
            ]
            entries = sorted({where.adapter_entry for where in old if where.adapter_entry})
            going = set(entries)
            empty = [where for where in listed if self._is_empty(where, going)]
            if not is_dry_run:
                if entries:
                    for entry in entries:  # their keys may lie on several nodes
                        self._client.unlink(entry)
                self._index.unlist(empty)
        return Collected(is_dry_run, len(empty), entries)

    def _is_old(self, where: Namespace, older_than: datetime) -> bool:
        """Say whether a namespace holds an adapter entry that was written before, and no mark that vouches for it."""
        if where.adapter_entry is None:
            return False
        try:
            value = self._values.get(where.adapter_entry)
        except ContractError:
            value = None  # of another version of this package: nobody reads it
        else:
            if value is None or value.created_at >= older_than:
                return False
        return self._marks.count(Reach(identity_digest=where.identity_digest)) == 0

    def _is_empty(self, where: Namespace, going: Collection[str]) -> bool:
        entry = where.adapter_entry
        if entry is not None and entry not in going and self._client.exists(entry):
            return False
        return next(iter(self._index.entries(where.prefix)), None) is None
