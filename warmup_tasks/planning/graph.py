"""The dependency graph of a plan: what waits for what, and what falls when something fails (spec 2.2).

Here live the labelled graph over plan rows, its waves, and the two walks along its edges: skipping after a failure and
invalidation. Which items exist, and on what they depend, is said in the plan rows themselves.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import rustworkx as rx

from warmup_tasks.errors import ContractError
from warmup_tasks.items import ItemKind, PlanRow


class Label(StrEnum):
    """What an edge hands on: a prompt's text, the cluster that decides the adapter, one adapter version's state."""

    FORWARD = "forward"
    INIT = "init"
    DELTA_UPDATE = "delta_update"


class Key(NamedTuple):
    """A node: an item on a replica, or (replica None) in the serving store. A prompt's node is ``prompt:<payload>``."""

    item_id: str
    replica: str | None


class DependencyGraph:
    """The acyclic, labelled graph of one plan's chosen rows.

    Dependencies hold within one profile, whose waves run in order. An item depends on the instance of the same replica,
    or, where it is stored for all, on any instance in its profile.

    Raises:
        ContractError: a dependency is not in the plan, or the dependencies run in a circle, which is named.
    """

    def __init__(self, rows: Iterable[PlanRow]) -> None:
        self._rows = {Key(row.item_id, row.replica): row for row in rows}
        self._instances: dict[tuple[str, str], list[Key]] = {}
        for key, row in self._rows.items():
            self._instances.setdefault((row.profile, key.item_id), []).append(key)
        self._graph: Any = rx.PyDiGraph(multigraph=False)
        self._index = {key: self._graph.add_node(key) for key in self._rows}
        self._groups = {key: self._dependency_groups(key, row) for key, row in self._rows.items()}
        for key, row in self._rows.items():
            for source in sorted({source for group in self._groups[key] for source in group}, key=str):
                self._graph.add_edge(self._index[source], self._index[key], _label(self._rows[source].kind, row.kind))
            if row.kind is ItemKind.EMBEDDING and row.payload_sha256 is not None:
                prompt = Key(f"prompt:{row.payload_sha256}", None)
                if prompt not in self._index:
                    self._index[prompt] = self._graph.add_node(prompt)
                self._graph.add_edge(self._index[prompt], self._index[key], Label.FORWARD)
        self._refuse_circle()

    def edges(self) -> list[tuple[Key, Key, Label]]:
        """Return all edges as (source, target, label), sorted."""
        found = [(self._graph[s], self._graph[t], label) for s, t, label in self._graph.weighted_edge_list()]
        return sorted(found, key=str)

    def waves(self) -> list[list[Key]]:
        """Return the items by depth, prompts left out: each wave depends on earlier ones only."""
        layers = ([self._graph[i] for i in layer] for layer in rx.topological_generations(self._graph))
        items = ([key for key in layer if key in self._rows] for layer in layers)
        return [sorted(layer, key=str) for layer in items if layer]

    def groups(self, key: Key) -> list[list[Key]]:
        """Return what an item needs: of each group at least one member must have succeeded."""
        return self._groups[key]

    def dependants_to_skip(self, failed: Iterable[Key]) -> dict[Key, Key]:
        """Return the items that must be skipped, each with the failed or skipped dependency to name.

        Nothing else is skipped: an adapter with several source clusters falls only when all of them failed, an item of
        one replica only by that replica's failures.
        """
        bad = set(failed)
        skipped: dict[Key, Key] = {}
        for index in rx.topological_sort(self._graph):
            key = self._graph[index]
            if key not in self._rows or key in bad:
                continue
            fallen = next((group for group in self._groups[key] if all(member in bad for member in group)), None)
            if fallen is not None:
                skipped[key] = fallen[0]
                bad.add(key)
        return skipped

    def invalidated_by(self, key: Key) -> list[Key]:
        """Return what an invalidated item voids with it, along ``forward`` and ``delta_update`` edges, sorted.

        A changed embedding does not void an adapter's weights, so ``init`` edges end the walk.
        """
        found: set[int] = set()
        open_ends = [self._index[key]]
        while open_ends:
            for _, target, label in self._graph.out_edges(open_ends.pop()):
                if label is not Label.INIT and target not in found:
                    found.add(target)
                    open_ends.append(target)
        return sorted((self._graph[index] for index in found), key=str)

    def check_waves(self) -> None:
        """Raise ``ContractError`` when an item stands in the same wave as, or in an earlier one than, what it needs."""
        for above, below in self._graph.edge_list():
            source, target = self._graph[above], self._graph[below]
            if source in self._rows and self._rows[source].wave >= self._rows[target].wave:
                raise ContractError(
                    f"{target.item_id} in wave {self._rows[target].wave} needs {source.item_id} before it"
                )

    def _dependency_groups(self, key: Key, row: PlanRow) -> list[list[Key]]:
        groups = []
        for item_id in row.depends_on:
            own = Key(item_id, row.replica)
            instances = [own] if own in self._rows else self._instances.get((row.profile, item_id), [])
            if row.replica is not None:
                instances = [k for k in instances if k.replica in (None, row.replica)]
            if not instances:
                raise ContractError(f"{key.item_id} depends on {item_id}, which is not in the plan of {row.profile}")
            groups.append(instances)
        if row.kind is ItemKind.ADAPTER and groups:
            return [[member for group in groups for member in group]]
        return groups

    def _refuse_circle(self) -> None:
        circle = rx.digraph_find_cycle(self._graph)
        if circle:
            names = [self._graph[source].item_id for source, _ in circle]
            raise ContractError(f"the plan's dependencies run in a circle: {' -> '.join([*names, names[0]])}")


def _label(source: ItemKind, target: ItemKind) -> Label:
    if source is ItemKind.ADAPTER:
        return Label.DELTA_UPDATE
    return Label.INIT if target is ItemKind.ADAPTER else Label.FORWARD
