"""Marks in Redis: this item is warm on this replica at this identity and epoch, until then (spec 0, 1.2).

Here marks are written, read and voided. The newest plan wins: within one epoch of its replica a mark never gives way to
one of an older ``as_of``, whatever the order in which runs end; Redis compares, so two writers cannot pass each other.
Whether a mark *holds* also depends on the replica's published epoch; that judgement lives in ``readiness.py``.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import redis

from warmup_tasks.identity import component, mark_key, namespace
from warmup_tasks.items import MARK_SCHEMA, ItemKind, Mark
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.namespaces import Namespace, NamespaceIndex, Reach
from warmup_tasks.serving.records import NEWER, chunks, decode, instant, life_ms

# ARGV: "XX" or "", then for each key its as_of, its epoch, its value and its life in ms.
_PUT = (
    NEWER
    + """
local written = 0
for i, key in ipairs(KEYS) do
  local standing = redis.call('GET', key)
  local as_of, epoch, value, life_ms = unpack(ARGV, 4 * i - 2, 4 * i + 1)
  if (standing or ARGV[1] == '') and not is_newer(standing, as_of, epoch) then
    redis.call('SET', key, value, 'PX', life_ms)
    written = written + 1
  end
end
return written
"""
)
# ARGV: the as_of of the run that voids.
_VOID_OLDER = (
    NEWER
    + """
local gone = {}
for _, key in ipairs(KEYS) do
  local standing = redis.call('GET', key)
  if standing and not is_newer(standing, ARGV[1], nil) then
    redis.call('UNLINK', key)
    gone[#gone + 1] = key
  end
end
return gone
"""
)


class MarkAddress(NamedTuple):
    """Where a mark lives. ``replica`` None is the serving store itself."""

    tenant: str | None
    identity_digest: str
    item_id: str
    replica: str | None

    @classmethod
    def of(cls, mark: Mark) -> "MarkAddress":
        """Return the address of a mark."""
        return cls(mark.tenant, mark.identity_digest, mark.item_id, mark.replica)

    @property
    def key(self) -> str:
        """The Redis key."""
        return mark_key(self.tenant, self.identity_digest, self.item_id, self.replica)

    @property
    def prefix(self) -> str:
        """The namespace that the key begins with."""
        return namespace(self.tenant, self.identity_digest)


class MarkStore:
    """All marks. Every call raises ``RetryLaterError`` while Redis is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._index = NamespaceIndex(client)
        self._identities = IdentityBook(client)
        self._put, self._void_older = client.register_script(_PUT), client.register_script(_VOID_OLDER)

    def put_many(self, marks: Sequence[Mark], now: datetime) -> int:
        """Write marks until their ``expires_at``, but for those that have ended by ``now`` or are no longer the newest.

        Returns:
            How many were written. Writing the same marks again leaves the same state.
        """
        alive = [mark for mark in marks if mark.expires_at > now]
        with store_errors("writing marks"):
            return sum(self._write(chunk, now) for chunk in chunks(alive))

    def renew_many(self, marks: Sequence[Mark], now: datetime) -> int:
        """Write marks as :meth:`put_many` does, but only where one stands: what was voided meanwhile stays void."""
        alive = [mark for mark in marks if mark.expires_at > now]
        with store_errors("renewing marks"):
            return sum(self._write(chunk, now, only_standing=True) for chunk in chunks(alive))

    def get(self, address: MarkAddress) -> Mark | None:
        """Return the mark at an address, or None where there is none of this schema version."""
        return self.get_many([address])[0]

    def get_many(self, addresses: Sequence[MarkAddress]) -> list[Mark | None]:
        """Return the marks at the addresses, in their order."""
        found: list[Mark | None] = []
        with store_errors("reading marks"):
            for chunk in chunks(addresses):
                with self._client.pipeline(transaction=False) as pipe:  # the keys may lie on several nodes
                    for address in chunk:
                        pipe.get(address.key)
                    found += [decode(raw, Mark, MARK_SCHEMA) for raw in pipe.execute()]
        return found

    def find(self, reach: Reach) -> Iterator[Mark]:
        """Yield every mark that a reach covers; the cost grows with the marks of the namespaces it covers."""
        with store_errors("looking for marks"):
            for where in self.namespaces(reach):
                for keys in self._keys(where, reach):
                    yield from (mark for raw in self._client.mget(keys) if (mark := decode(raw, Mark, MARK_SCHEMA)))

    def find_on(self, replicas: Collection[str]) -> Iterator[Mark]:
        """Yield every mark on any of the replicas, in one walk over all namespaces."""
        ends = {component(replica) for replica in replicas}
        with store_errors("looking for marks"):
            for prefix in {where.prefix for where in self._index.namespaces()} if ends else ():
                for keys in self._index.keys(prefix):
                    reached = [key for key in keys if key.rpartition(":")[2] in ends and _is_mark(key, prefix)]
                    if reached:
                        found = self._client.mget(reached)
                        yield from (mark for raw in found if (mark := decode(raw, Mark, MARK_SCHEMA)))

    def count(self, reach: Reach) -> int:
        """Return how many marks a reach covers."""
        with store_errors("counting marks"):
            return sum(
                int(self._client.exists(*keys)) for where in self.namespaces(reach) for keys in self._keys(where, reach)
            )

    def void(self, reach: Reach) -> int:
        """Delete every mark that a reach covers and return how many there were.

        The cost grows with the marks of the namespaces that the reach covers; a replica or an item alone covers all.
        """
        with store_errors("voiding marks"):
            return sum(
                self._remove(where.prefix, keys)
                for where in self.namespaces(reach)
                for keys in self._keys(where, reach)
            )

    def void_many(self, addresses: Iterable[MarkAddress], *, as_of: datetime | None = None) -> int:
        """Delete single marks and return how many there were.

        Args:
            addresses: of the marks.
            as_of: of the run whose verdict it is: marks of newer plans stand. None voids whatever is there.
        """
        by_prefix: dict[str, list[str]] = defaultdict(list)
        for address in addresses:
            by_prefix[address.prefix].append(address.key)
        with store_errors("voiding marks"):
            return sum(
                self._remove(prefix, keys) if as_of is None else self._remove_older(prefix, keys, as_of)
                for prefix, every in by_prefix.items()
                for keys in chunks(every)
            )

    def namespaces(self, reach: Reach) -> list[Namespace]:
        """Return the namespaces that a reach covers, each prefix once."""
        covered = {where.prefix: where for where in self._index.namespaces() if reach.covers(where)}
        return [
            where
            for where in covered.values()
            if self._may_have_revision(where, reach.weights_revision)
            and self._may_have_lexicon(where, reach.lexicon_version)
        ]

    def _may_have_revision(self, where: Namespace, revision: str | None) -> bool:
        identity = self._identities.recall(where.identity_digest) if revision is not None else None
        return identity is None or identity.weights_revision.value in (None, revision)

    def _may_have_lexicon(self, where: Namespace, version: str | None) -> bool:
        embedder = self._identities.recall_embedder(where.identity_digest) if version is not None else None
        return embedder is None or embedder.lexicon_version == version

    def _remove(self, prefix: str, keys: Sequence[str]) -> int:
        return self._index.remove(prefix, [key.removeprefix(prefix) for key in keys])

    def _remove_older(self, prefix: str, keys: Sequence[str], as_of: datetime) -> int:
        gone = [key.decode() for key in self._void_older(keys=keys, args=[instant(as_of)])]
        self._remove(prefix, gone)
        return len(gone)

    def _write(self, marks: Sequence[Mark], now: datetime, *, only_standing: bool = False) -> int:
        listed: dict[Namespace, datetime] = {}
        by_prefix: dict[str, dict[str, Mark]] = defaultdict(dict)
        for mark in marks:
            where, address = _namespace_of(mark), MarkAddress.of(mark)
            listed[where] = max(listed.get(where, mark.expires_at), mark.expires_at)
            by_prefix[address.prefix][address.key] = mark
        self._index.register(listed, now)
        written = 0
        for prefix, own in by_prefix.items():
            self._index.enter(prefix, {key: mark.expires_at for key, mark in own.items()}, now)
            args: list[str | int] = ["XX" if only_standing else ""]
            for mark in own.values():
                args += [instant(mark.as_of), mark.epoch or "", mark.model_dump_json(), life_ms(mark.expires_at, now)]
            written += int(self._put(keys=list(own), args=args))
        return written

    def _keys(self, where: Namespace, reach: Reach) -> Iterator[list[str]]:
        begin = f"{where.prefix}mark:{reach.item_id}:" if reach.item_id else f"{where.prefix}mark:"
        end = f":{component(reach.replica)}" if reach.replica else ""
        for keys in self._index.keys(where.prefix):
            reached = [key for key in keys if key.startswith(begin) and key.endswith(end)]
            if reached:
                yield reached


def _is_mark(key: str, prefix: str) -> bool:
    return key.startswith(f"{prefix}mark:")


def _namespace_of(mark: Mark) -> Namespace:
    # An embedding belongs to its embedder's identity: a new model leaves it alone.
    model = None if mark.kind is ItemKind.EMBEDDING else mark.model
    return Namespace(tenant=mark.tenant, identity_digest=mark.identity_digest, model=model, adapter=mark.adapter)
