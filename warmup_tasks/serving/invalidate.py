"""Invalidation: what must not be read any more, marks first, then values (spec 1.2, 2.2).

Readers trust marks alone, so from the moment the marks are gone nothing that is reached can be handed out, even while
values are still being deleted, or when the work stops half-way: calling again finishes it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import redis

from warmup_tasks.items import Mark
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Namespace, NamespaceIndex, Reach, keys_of
from warmup_tasks.serving.readiness import ReadinessStore
from warmup_tasks.serving.store import ValueStore

_KIND_OF_KEY = {"emb": "embedding", "resp": "response", "qa": "qa_pair", "lora": "adapter", "mark": "mark"}


@dataclass(frozen=True, slots=True)
class Impact:
    """What an invalidation reaches, or has deleted.

    Attributes:
        is_dry_run: whether this is a preview.
        readiness: records of replicas that are no longer called ready.
        marks: marks voided.
        values: kind → values deleted.
        namespaces: how many pairs of tenant and identity it reaches into.
    """

    is_dry_run: bool
    readiness: int
    marks: int
    values: dict[str, int] = field(default_factory=dict)
    namespaces: int = 0


class Invalidator:
    """Previews and carries out invalidations."""

    def __init__(self, client: redis.Redis) -> None:
        self._values = ValueStore(client)
        self._index = NamespaceIndex(client)
        self._marks = MarkStore(client)
        self._readiness = ReadinessStore(client)

    def preview(self, reach: Reach) -> Impact:
        """Return what :meth:`invalidate` would delete now; changes nothing."""
        with store_errors("previewing an invalidation"):
            spaces = self._marks.namespaces(reach)
            marks = self._marks_with_values(reach)
            values: Counter[str] = Counter()
            for where in spaces:
                there = {key for keys in self._value_keys(where, reach, marks) for key in self._values.existing(keys)}
                values.update(_kind(key.removeprefix(where.prefix)) for key in there)
            readiness = self._readiness.reached(reach)
        return Impact(True, len(readiness), self._marks.count(reach), dict(values), len(spaces))

    def invalidate(self, reach: Reach) -> Impact:
        """Delete what a reach covers: readiness, then all marks, then the values; calling again changes nothing more.

        Raises:
            RetryLaterError: Redis went away; call again to finish.
        """
        with store_errors("invalidating"):
            readiness = sum(self._readiness.void(r.model, r.replica) for r in self._readiness.reached(reach))
            spaces = self._marks.namespaces(reach)
            marks = self._marks_with_values(reach)
            voided = self._marks.void(reach)
            values: Counter[str] = Counter()
            for where in spaces:
                for entries in self._value_entries(where, reach, marks):
                    for kind, every in _by_kind(entries).items():
                        values[kind] += self._index.remove(where.prefix, every)
            if reach.is_whole_namespace:
                self._index.unlist(self._listed(spaces))
        return Impact(False, readiness, voided, {kind: n for kind, n in values.items() if n}, len(spaces))

    def _marks_with_values(self, reach: Reach) -> list[Mark]:
        # The value of a single item is named by its mark alone, so it is asked for before the mark goes.
        return list(self._marks.find(reach)) if reach.item_id else []

    def _value_keys(self, where: Namespace, reach: Reach, marks: list[Mark]) -> Iterator[list[str]]:
        return (keys_of(where.prefix, entries) for entries in self._value_entries(where, reach, marks))

    def _value_entries(self, where: Namespace, reach: Reach, marks: list[Mark]) -> Iterator[list[str]]:
        if reach.is_whole_namespace:
            for entries in self._index.entries(where.prefix):
                values = [entry for entry in entries if _kind(entry) != "mark"]
                if values:
                    yield values
            if where.adapter_entry:
                yield [where.adapter_entry.removeprefix(where.prefix)]
        elif reach.replica is None:  # a value is no property of one replica
            keys = [mark.value_key for mark in marks if mark.value_key and mark.value_key.startswith(where.prefix)]
            yield [key.removeprefix(where.prefix) for key in keys]

    def _listed(self, spaces: list[Namespace]) -> list[Namespace]:
        gone = {where.prefix for where in spaces}
        return [where for where in self._index.namespaces() if where.prefix in gone]


def _kind(entry: str) -> str:
    return _KIND_OF_KEY.get(entry.split(":", 1)[0], "other")


def _by_kind(entries: list[str]) -> dict[str, list[str]]:
    # All keys that one entry names are of one kind.
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        kinds.setdefault(_kind(entry), []).append(entry)
    return kinds
