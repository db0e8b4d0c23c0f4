"""What earlier waves left behind, as far as one shard needs it: what did not come about, and what adapters were loaded.

Of plan and receipts only the columns that decide are read, of the shard's own profile, in which all dependencies run.
The graph is made only where something is missing. Nothing is warmed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from warmup_tasks.items import ItemKind, Outcome, PlanRow, Receipt
from warmup_tasks.lake.columns import values_of
from warmup_tasks.lake.records import Key, key_of, partitions_of
from warmup_tasks.lake.schemas import RECEIPTS, from_table
from warmup_tasks.lake.selection import Where
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run

_DECIDING = ("item_id", "replica", "wave", "outcome", "kind", "started_at")
_STORE = ""


@dataclass(frozen=True, slots=True)
class Before:
    """What happened on one profile before a wave.

    Attributes:
        chosen: every chosen row of the profile, where something was lost; the graph is made of them.
        lost: what was to be warmed in an earlier wave and was not.
        witnesses: the receipts that later waves ask about: those of adapters, and the one that was begun first.
    """

    chosen: list[PlanRow] = field(default_factory=list)
    lost: list[Key] = field(default_factory=list)
    witnesses: dict[Key, Receipt] = field(default_factory=dict)

    @classmethod
    def nothing(cls) -> Self:
        """Return what lies before a shard without rows."""
        return cls()

    @classmethod
    def of(cls, lake: Lake, run: Run, profile: str, wave: int) -> Self:
        """Return what lies before a wave of a profile.

        Raises:
            ContractError: there is no plan.
        """
        plan = f"plan/{run.run_id}"
        is_here: Where = {"profile": [profile], "is_chosen": [True]}
        planned = lake.read(plan, "plan", ("item_id", "replica", "wave"), is_here)
        planned = planned.filter(pc.less(planned["wave"], wave))
        receipts, witnesses = _receipts(lake, run, profile, wave)
        lost = _without(planned, receipts)
        chosen = from_table(lake.read(plan, "plan", where=is_here), PlanRow) if lost else []
        return cls(chosen, lost, witnesses)

    def fallen(self, rows: Sequence[PlanRow]) -> set[Key]:
        """Return the keys of those rows that depend on something lost, as the graph says."""
        if not self.lost:
            return set()
        from warmup_tasks.planning.graph import DependencyGraph
        from warmup_tasks.planning.graph import Key as NodeKey

        skipped = set(DependencyGraph(self.chosen).dependants_to_skip(NodeKey(*key) for key in self.lost))
        return {key_of(row) for row in rows if NodeKey(*key_of(row)) in skipped}


def _receipts(lake: Lake, run: Run, profile: str, wave: int) -> tuple[pa.Table, dict[Key, Receipt]]:
    """Return the deciding columns of a profile's receipts before a wave, and the receipts that are asked about."""
    parts, witnesses = [RECEIPTS.empty_table().select(_DECIDING)], {}
    first: Receipt | None = None
    for ref in partitions_of(lake, "receipts", run.run_id, f"{profile}.w"):
        found = lake.read(ref, "receipts", _DECIDING, {"profile": [profile]})
        found = found.filter(pc.less(found["wave"], wave))
        if not found.num_rows:
            continue
        parts.append(found)
        oldest = found.slice(pc.index(found["started_at"], pc.min(found["started_at"])).as_py(), 1)
        asked = {
            *oldest["item_id"].to_pylist(),
            *found.filter(pc.equal(found["kind"], ItemKind.ADAPTER))["item_id"].to_pylist(),
        }
        for receipt in from_table(lake.read(ref, "receipts", where={"item_id": asked}), Receipt):
            if receipt.kind is ItemKind.ADAPTER:
                witnesses[key_of(receipt)] = receipt
            if first is None or receipt.started_at < first.started_at:
                first = receipt
    if first is not None:
        witnesses[key_of(first)] = first
    return pa.concat_tables(parts), witnesses


def _without(planned: pa.Table, receipts: pa.Table) -> list[Key]:
    """Return the keys of planned rows that no receipt calls warmed, sorted."""
    warmed = receipts.filter(pc.equal(receipts["outcome"], Outcome.WARMED))
    left, right = (
        pa.table({"item_id": rows["item_id"], "replica": pc.fill_null(rows["replica"], _STORE)})
        for rows in (planned, warmed)
    )
    lost = left.join(right, keys=["item_id", "replica"], join_type="left anti")
    return sorted(
        (
            (item, replica or None)
            for item, replica in zip(values_of(lost["item_id"]), values_of(lost["replica"]), strict=True)
        ),
        key=str,
    )
