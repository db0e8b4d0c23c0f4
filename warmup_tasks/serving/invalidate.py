"""Invalidation: what an event makes wrong, and taking it away: readiness, then marks, then values (spec 1.2, 2.2).

One walk says what falls and why; the preview shows it and the work carries it out. Readers trust marks alone, so from
the moment the marks are gone nothing that is reached can be handed out, even while values are still being deleted, or
when the work stops half-way: calling again finishes it, but for values that only a voided mark named, which end by
their TTL unread. What depends on a single item is known by the plan that made it; whoever calls brings the addresses.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import redis

from warmup_tasks.identity import NO_TENANT, adapter_entry_key
from warmup_tasks.items import ItemKind, Mark
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Namespace, NamespaceIndex, Reach, keys_of
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.tombstones import TombstoneStore

ITEM_IDS_SHOWN = 1000
_KIND_OF_KEY = {"emb": "embedding", "resp": "response", "qa": "qa_pair", "lora": "adapter", "mark": "mark"}
_OF_EMBEDDINGS = (ItemKind.RESPONSE, ItemKind.QA_PAIR)  # spec 2.2: they depend on their embedding; adapters do not


class Why(StrEnum):
    """Why an item falls."""

    NAMED = "named by the operator"
    DEPENDS = "depends on an item that falls"
    REPLICA = "its replica is taken out"
    IDENTITY = "its model or weights are replaced"
    ADAPTER = "its adapter is replaced"
    EMBEDDER = "its embedder or lexicon is replaced"
    TENANT = "its tenant is taken out"


@dataclass(frozen=True, slots=True)
class Impact:
    """What an invalidation reaches, or has deleted.

    Attributes:
        is_dry_run: whether this is a preview.
        readiness: records of replicas that are no longer called ready, or with fewer ready items.
        marks: marks voided.
        values: kind → values deleted.
        namespaces: how many pairs of tenant and identity it reaches into as a whole.
        why: kind → reason → marks that fall for it.
        item_ids: the items that fall, sorted; at most ``ITEM_IDS_SHOWN``.
    """

    is_dry_run: bool
    readiness: int
    marks: int
    values: dict[str, int] = field(default_factory=dict)
    namespaces: int = 0
    why: dict[str, dict[str, int]] = field(default_factory=dict)
    item_ids: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Fall:
    """Everything that falls: whole namespaces, and single marks elsewhere with the values that they vouch for."""

    spaces: list[Namespace]
    marks: dict[MarkAddress, Mark] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    item_ids: set[str] = field(default_factory=set)
    lost: Counter[tuple[str, str, str, str | None]] = field(default_factory=Counter)

    def add(self, mark: Mark, why: Why) -> None:
        """Note one mark, once."""
        address = MarkAddress.of(mark)
        if address not in self.marks:
            self.marks[address] = mark
            self.count(mark, why)

    def count(self, mark: Mark, why: Why) -> None:
        """Count one mark without keeping it."""
        self.counts[mark.kind][why] += 1
        if len(self.item_ids) < ITEM_IDS_SHOWN:
            self.item_ids.add(mark.item_id)
        if mark.replica is not None:
            self.lost[mark.model, mark.replica, mark.run_id, mark.epoch] += 1


class Invalidator:
    """Previews and carries out invalidations."""

    def __init__(self, client: redis.Redis) -> None:
        self._values = ValueStore(client)
        self._index = NamespaceIndex(client)
        self._marks = MarkStore(client)
        self._readiness = ReadinessStore(client)
        self._identities = IdentityBook(client)
        self._tombstones = TombstoneStore(client)

    def preview(self, reach: Reach, dependants: Sequence[MarkAddress] = ()) -> Impact:
        """Return what :meth:`invalidate` would delete now; changes nothing."""
        with store_errors("previewing an invalidation"):
            fall = self._walk(reach, dependants)
            there: dict[str, set[str]] = defaultdict(set)
            for prefix, entries in self._value_entries(reach, fall):
                there[prefix] |= self._values.existing(keys_of(prefix, entries))
            values = Counter(_kind(key.removeprefix(prefix)) for prefix, keys in there.items() for key in keys)
            readiness = len(self._reached(reach, fall))
            marks = len(fall.marks) + (self._marks.count(reach) if reach.is_whole_namespace else 0)
        return _impact(fall, dict(values), marks=marks, readiness=readiness, is_dry_run=True)

    def invalidate(
        self, reach: Reach, dependants: Sequence[MarkAddress] = (), *, now: datetime | None = None
    ) -> Impact:
        """Delete what a reach covers: readiness, then all marks, then the values; calling again changes nothing more.

        A single item gets a tombstone first. What is left of a replica's readiness is written back at the very end, so
        a stop half-way leaves the replica not ready.

        Args:
            reach: what the event is about.
            dependants: addresses of what the plans say depends on the items of a reach by item.
            now: the wall clock's time; None reads the clock.

        Raises:
            RetryLaterError: Redis went away; call again to finish.
        """
        moment = now or datetime.now(UTC)
        with store_errors("invalidating"):
            fall = self._walk(reach, dependants)
            if reach.item_id:
                self._tombstones.put(reach.item_id, moment)
            reached = self._reached(reach, fall)
            for record, _ in reached:
                self._readiness.void(record.model, record.replica)
            voided = self._marks.void(reach) if reach.is_whole_namespace else 0
            voided += self._marks.void_many(fall.marks)
            values: Counter[str] = Counter()
            for prefix, entries in self._value_entries(reach, fall):
                for kind, every in _by_kind(entries).items():
                    values[kind] += self._index.remove(prefix, every)
            self._index.unlist(self._listed(fall.spaces))
            for record, lost in reached:
                if lost is not None and record.ready > lost:
                    self._readiness.put(record.counted(record.ready - lost), moment)
        found = {kind: n for kind, n in values.items() if n}
        return _impact(fall, found, marks=voided, readiness=len(reached), is_dry_run=False)

    def _walk(self, reach: Reach, dependants: Sequence[MarkAddress]) -> _Fall:
        """Return what falls. Marks of namespaces that fall as a whole are counted, not kept: there may be many."""
        if reach.is_whole_namespace:
            fall = _Fall(self._marks.namespaces(reach))
            for mark in self._marks.find(reach):
                fall.count(mark, _why(reach))
        else:
            fall = _Fall([])
            for mark in self._marks.find(reach):
                fall.add(mark, _why(reach))
        for found in self._marks.get_many(list(dependants)):
            if found is not None:
                fall.add(found, Why.DEPENDS)
        if reach.is_of_embedder:
            for mark in self._of_embedder(reach):
                fall.add(mark, Why.DEPENDS)
        return fall

    def _of_embedder(self, reach: Reach) -> Iterator[Mark]:
        """Yield the marks of what rests on embeddings of the embedder, or of one that nobody remembers."""
        wider = reach.model_copy(update={"embedder": None, "embedder_revision": None, "lexicon_version": None})
        known: dict[str | None, bool] = {None: True}
        for where in self._index.namespaces():
            if where.model is None or not wider.covers(where):
                continue
            for mark in self._marks.find(
                Reach(identity_digest=where.identity_digest, tenant=where.tenant or NO_TENANT)
            ):
                if mark.kind in _OF_EMBEDDINGS:
                    if mark.embedder_digest not in known:
                        known[mark.embedder_digest] = self._is_of(reach, mark.embedder_digest or "")
                    if known[mark.embedder_digest]:
                        yield mark

    def _is_of(self, reach: Reach, embedder_digest: str) -> bool:
        embedder = self._identities.recall_embedder(embedder_digest)
        return embedder is None or (
            reach.embedder in (None, embedder.embedder)
            and reach.embedder_revision in (None, embedder.revision)
            and reach.lexicon_version in (None, embedder.lexicon_version)
        )

    def _reached(self, reach: Reach, fall: _Fall) -> list[tuple[ReadinessRecord, int | None]]:
        """Return the readiness records that no longer hold, each with the items that it lost; None: all of them."""
        whole = {(record.model, record.replica): record for record in self._readiness.reached(reach)}
        found: list[tuple[ReadinessRecord, int | None]] = [(record, None) for record in whole.values()]
        for model, replica in sorted({(model, replica) for model, replica, _, _ in fall.lost} - set(whole)):
            record = self._readiness.read(model, replica)
            lost = fall.lost[model, replica, record.run_id, record.epoch] if record is not None else 0
            if record is not None and lost:
                found.append((record, lost))
        return found

    def _value_entries(self, reach: Reach, fall: _Fall) -> Iterator[tuple[str, list[str]]]:
        """Yield (namespace prefix, entries of its index) of the values that fall: none with a replica alone."""
        for where in fall.spaces:
            for entries in self._index.entries(where.prefix):
                values = [entry for entry in entries if _kind(entry) != "mark"]
                if values:
                    yield where.prefix, values
            if where.adapter_entry:
                yield where.prefix, [where.adapter_entry.removeprefix(where.prefix)]
        if reach.replica is not None:
            return
        for address, mark in fall.marks.items():
            key = mark.value_key
            if mark.kind is ItemKind.ADAPTER and mark.adapter is not None:
                key = adapter_entry_key(mark.identity_digest, mark.model, mark.adapter)
            if key and key.startswith(address.prefix):
                yield address.prefix, [key.removeprefix(address.prefix)]

    def _listed(self, spaces: list[Namespace]) -> list[Namespace]:
        gone = {where.prefix for where in spaces}
        return [where for where in self._index.namespaces() if where.prefix in gone]


def _why(reach: Reach) -> Why:
    said = {
        Why.NAMED: reach.item_id,
        Why.REPLICA: reach.replica,
        Why.ADAPTER: reach.adapter,
        Why.EMBEDDER: reach.embedder or reach.lexicon_version,
        Why.IDENTITY: reach.model or reach.identity_digest,
    }
    return next((why for why, given in said.items() if given is not None), Why.TENANT)


def _impact(fall: _Fall, values: dict[str, int], *, marks: int, readiness: int, is_dry_run: bool) -> Impact:
    why = {str(kind): {str(reason): n for reason, n in sorted(by.items())} for kind, by in sorted(fall.counts.items())}
    return Impact(is_dry_run, readiness, marks, values, len(fall.spaces), why, sorted(fall.item_ids))


def _kind(entry: str) -> str:
    return _KIND_OF_KEY.get(entry.split(":", 1)[0], "other")


def _by_kind(entries: list[str]) -> dict[str, list[str]]:
    # All keys that one entry names are of one kind.
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        kinds.setdefault(_kind(entry), []).append(entry)
    return kinds
