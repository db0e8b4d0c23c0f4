"""Which items of a shard depend on something that failed: they are skipped, and nothing else is (spec 2.2). Pure."""

from collections.abc import Mapping, Sequence

from warmup_tasks.items import ItemKind, Outcome, PlanRow, Receipt
from warmup_tasks.lake.records import Key, key_of


def failed_dependencies(rows: Sequence[PlanRow], plan: Sequence[PlanRow], earlier: Mapping[Key, Receipt]) -> set[Key]:
    """Return the keys of those rows whose dependencies did not come about in an earlier wave.

    An adapter with several source clusters falls only when all of them did; everything else falls with any of its
    dependencies. An item that lives on replicas is there for a dependant in the store when one replica has it. A
    dependency of the same profile without a receipt did not come about; one that the plan did not choose is none.

    Args:
        rows: of the shard.
        plan: all rows of the plan.
        earlier: receipts of earlier waves by (item_id, replica).
    """
    chosen: dict[str, list[PlanRow]] = {}
    for planned in plan:
        if planned.is_chosen:
            chosen.setdefault(planned.item_id, []).append(planned)
    return {key_of(row) for row in rows if _is_lost(row, chosen, earlier)}


def _is_lost(row: PlanRow, chosen: Mapping[str, Sequence[PlanRow]], earlier: Mapping[Key, Receipt]) -> bool:
    fates = []
    for item_id in row.depends_on:
        needed = [dep for dep in chosen.get(item_id, ()) if dep.wave < row.wave and _speaks_for(dep, row)]
        if needed:
            fates.append(any(_came_about(dep, row, earlier) for dep in needed))
    if not fates:
        return False
    return not any(fates) if row.kind is ItemKind.ADAPTER else not all(fates)


def _speaks_for(dependency: PlanRow, row: PlanRow) -> bool:
    """Say whether the dependency's row is the one to look at: the store's, the same replica's, or the profile's."""
    if dependency.replica is None or dependency.replica == row.replica:
        return True
    return row.replica is None and dependency.profile == row.profile


def _came_about(dependency: PlanRow, row: PlanRow, earlier: Mapping[Key, Receipt]) -> bool:
    receipt = earlier.get(key_of(dependency))
    if receipt is None:
        # Another profile's branch runs on its own: that it has not come this far is no failure.
        return dependency.profile != row.profile
    return receipt.outcome is Outcome.WARMED
