"""Which namespaces exist, what lives in each, and which of them an invalidation reaches (spec 1.2, 2.2).

Redis offers no cheap "all keys that begin with": KEYS blocks the server and SCAN walks everybody's keys. So each
namespace has an index, a sorted set of the keys in it by the time when they end, and one sorted set lists all
namespaces. Both are trimmed at every write; an index has the TTL of its last entry. An entry names one key or many, one
a line without the namespace: a bulk load enters its keys by the block, which costs the server next to nothing. An entry
is written before its keys, so no key exists that invalidation cannot find; on a Redis Cluster a pipeline keeps no order
between nodes, so each step is answered before the next is sent. Deciding what is voided when lives in
``invalidate.py``.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import redis
from pydantic import model_validator

from warmup_tasks.identity import NAMESPACES_KEY, NO_TENANT, adapter_entry_key, index_key, namespace
from warmup_tasks.items import Record
from warmup_tasks.serving.records import CHUNK, decode

NAMESPACE_SCHEMA = 1
SLACK_S = 60.0  # clocks of writers differ: an entry outlives its key
LINE = "\n"  # stands in no key: components are percent-encoded
_SCAN_COUNT = 64  # entries a reply: a block's entry is long
ENTER = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
for i = 2, #ARGV, 2 do redis.call('ZADD', KEYS[1], 'GT', ARGV[i], ARGV[i + 1]) end
local last = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local life_s = tonumber(last[2]) - tonumber(ARGV[1])
redis.call('PEXPIRE', KEYS[1], math.ceil(life_s * 1000))
return redis.status_reply('OK')
"""


class Namespace(Record):
    """One tenant at one identity; the other fields say what that identity is, as far as the writer knew."""

    schema_version: int = NAMESPACE_SCHEMA
    tenant: str | None
    identity_digest: str
    model: str | None = None
    adapter: str | None = None
    embedder: str | None = None
    embedder_revision: str | None = None

    @property
    def prefix(self) -> str:
        """What every key of the namespace begins with."""
        return namespace(self.tenant, self.identity_digest)

    @property
    def adapter_entry(self) -> str | None:
        """The key of the adapter's registry entry, which has no TTL and so stands in no index."""
        if self.model is None or self.adapter is None or self.tenant is not None:
            return None
        return adapter_entry_key(self.identity_digest, self.model, self.adapter)


class Reach(Record):
    """What an invalidation reaches: everything that all given fields agree with.

    ``model`` includes the adapters on top of that model; ``adapter`` leaves the base model alone. ``tenant`` may be
    ``identity.NO_TENANT`` for what belongs to none. ``weights_revision`` also reaches identities whose revision is not
    known, ``lexicon_version`` embedders whose lexicon is not known: voiding too much costs a miss, voiding too little a
    wrong answer. What falls with an embedder or an item, along the edges of the graph, says ``invalidate.py``.
    """

    model: str | None = None
    weights_revision: str | None = None
    adapter: str | None = None
    embedder: str | None = None
    embedder_revision: str | None = None
    lexicon_version: str | None = None
    tenant: str | None = None
    identity_digest: str | None = None
    replica: str | None = None
    item_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("say what to invalidate: a model, adapter, embedder, tenant, identity, replica or item")
        if self.weights_revision is not None and self.model is None:
            raise ValueError("weights_revision needs the model that it is a revision of")
        if self.embedder_revision is not None and self.embedder is None:
            raise ValueError("embedder_revision needs the embedder that it is a revision of")
        return self

    @property
    def is_of_embedder(self) -> bool:
        """Whether it names an embedder or its lexicon."""
        return self.embedder is not None or self.lexicon_version is not None

    @property
    def is_whole_namespace(self) -> bool:
        """Whether everything in a namespace is reached, not single marks of it."""
        return self.replica is None and self.item_id is None

    def covers(self, where: Namespace) -> bool:
        """Say whether a namespace is reached, weights revision and lexicon left aside: only their identities know."""
        if self.is_of_embedder and where.embedder is None:
            return False
        asked = {
            "model": where.model,
            "adapter": where.adapter,
            "embedder": where.embedder,
            "embedder_revision": where.embedder_revision,
            "tenant": where.tenant or NO_TENANT,
            "identity_digest": where.identity_digest,
        }
        return all(getattr(self, name) in (None, there) for name, there in asked.items())


class NamespaceIndex:
    """The list of namespaces and the index of each."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._enter = client.register_script(ENTER)

    def register(self, ends: Mapping[Namespace, datetime | None], now: datetime) -> None:
        """List namespaces until the given ends; None is *until invalidated*."""
        if not ends:
            return
        scores = {n.model_dump_json(): end.timestamp() if end else math.inf for n, end in ends.items()}
        with self._client.pipeline(transaction=False) as pipe:
            pipe.zremrangebyscore(NAMESPACES_KEY, "-inf", now.timestamp() - SLACK_S)
            pipe.zadd(NAMESPACES_KEY, scores, gt=True)
            pipe.execute()

    def enter(self, prefix: str, ends: Mapping[str, datetime], now: datetime) -> None:
        """Enter keys that begin with ``prefix`` into its index, before the keys themselves are written."""
        entries = [part for key, end in ends.items() for part in (end.timestamp(), key.removeprefix(prefix))]
        self._enter(keys=[index_key(prefix)], args=[now.timestamp() - SLACK_S, *entries])

    def namespaces(self) -> list[Namespace]:
        """Return the namespaces that are listed, in the order in which they end; unreadable entries are left out."""
        found: list[Namespace] = []
        for raw in self._client.zrange(NAMESPACES_KEY, 0, -1):
            where = decode(raw, Namespace, NAMESPACE_SCHEMA)
            if where is not None:
                found.append(where)
        return found

    def entries(self, prefix: str) -> Iterator[list[str]]:
        """Yield the entries of a namespace's index in chunks, without holding up the server.

        Ended keys may be among them, and a key may be named by two entries.
        """
        cursor = -1
        while cursor != 0:
            cursor, found = self._client.zscan(index_key(prefix), max(cursor, 0), count=_SCAN_COUNT)
            if found:
                members: list[Any] = [member for member, _ in found]
                yield [member.decode() for member in members]

    def keys(self, prefix: str) -> Iterator[list[str]]:
        """Yield the keys that the entries name, in chunks."""
        for entries in self.entries(prefix):
            keys = keys_of(prefix, entries)
            yield from (keys[start : start + CHUNK] for start in range(0, len(keys), CHUNK))

    def remove(self, prefix: str, entries: Sequence[str]) -> int:
        """Delete the keys that entries name, then the entries; return how many keys were there."""
        removed = 0
        keys = keys_of(prefix, entries)
        for start in range(0, len(keys), CHUNK):
            removed += int(self._client.unlink(*keys[start : start + CHUNK]))
        if entries:
            self._client.zrem(index_key(prefix), *entries)
        return removed

    def unlist(self, namespaces: Sequence[Namespace]) -> None:
        """Take namespaces off the list."""
        if namespaces:
            self._client.zrem(NAMESPACES_KEY, *(n.model_dump_json() for n in namespaces))


def keys_of(prefix: str, entries: Iterable[str]) -> list[str]:
    """Return the keys that entries name, each once, in their order."""
    return list(dict.fromkeys(prefix + line for entry in entries for line in entry.split(LINE)))
