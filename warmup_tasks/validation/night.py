"""What validation knows of one profile in the run at hand: plan, receipts, twins, sample. No judgement here."""

from dataclasses import dataclass
from typing import Self

from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.identity import NO_TENANT, derived_salt
from warmup_tasks.items import Arm, ItemKind, PlanRow, Reason, Receipt, TwinResult
from warmup_tasks.lake.records import Key, Plan, key_of, read_all, read_part, read_plan
from warmup_tasks.lake.selection import Where
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.serving.marks import MarkAddress
from warmup_tasks.validation.sample import draw


@dataclass(frozen=True, slots=True)
class Night:
    """One hardware profile's part of a run, as the lake holds it. Keys are (item_id, replica)."""

    lake: Lake
    run: Run
    fleet: FleetFile
    profile: str
    plan: Plan
    sample: set[Key]
    receipts: dict[Key, Receipt]
    twins: dict[Key, TwinResult]

    @classmethod
    def of(cls, lake: Lake, run: Run, fleet: FleetFile, profile: str, kind: ItemKind | None = None) -> Self:
        """Return the night of one hardware profile; prompts are not read, only prefixes' tokens.

        Args:
            lake: holds the plan, and receipts and twins as far as there are any.
            run: the run.
            fleet: the fleet file.
            profile: its part of the plan is read; what depends on each other lies in one profile.
            kind: only items of this kind; None takes all.

        Raises:
            ContractError: there is no plan.
        """
        where: Where = {"profile": [profile], **({} if kind is None else {"kind": [kind]})}
        plan = read_plan(lake, run.run_id, where, without=("body_json",))
        sample = draw(
            plan.rows,
            per_stratum=run.policy.twins_per_stratum,
            per_replica=run.policy.max_twins_per_replica,
            seed=run.request.seed,
        )
        receipts = read_all(lake, "receipts", run.run_id, Receipt, f"{profile}.w")
        twins = read_part(lake, "twins", f"{run.run_id}.{profile}", TwinResult)
        return cls(
            lake,
            run,
            fleet,
            profile,
            plan,
            sample,
            {key_of(receipt): receipt for receipt in receipts if receipt.profile == profile},
            {(twin.item_id, twin.replica): twin for twin in twins},
        )

    @property
    def planned(self) -> list[PlanRow]:
        """The rows that were to be warmed."""
        return [row for row in self.plan.rows if row.is_chosen and row.arm is Arm.WARM]

    @property
    def judged(self) -> list[PlanRow]:
        """The rows that evidence speaks of: those to be warmed, and the holdout."""
        return [row for row in self.plan.rows if (row.is_chosen and row.arm is Arm.WARM) or is_held_out(row)]

    def replicas(self) -> list[ReplicaSpec]:
        """Return the replicas that the plan speaks of, in the fleet's order."""
        named = {row.replica for row in self.judged}
        return [replica for replica in self.fleet.replicas if replica.name in named]

    def sampled(self, replica: str) -> list[PlanRow]:
        """Return the sampled prefixes of a replica in the plan's order."""
        rows = [row for row in self.planned if row.replica == replica and key_of(row) in self.sample]
        return sorted(rows, key=lambda row: row.order)

    def token_ids(self, row: PlanRow) -> list[int]:
        """Return the tokens of a KV prefix."""
        return list(self.plan.payload(row).token_ids or [])

    def other_salt(self, row: PlanRow, purpose: str, label: str) -> str:
        """Return a salt under which this item's blocks cannot lie in the cache.

        Args:
            row: the item.
            purpose: ``twin`` or ``control``.
            label: one that no earlier request of the process carried.
        """
        tenant = row.tenant or NO_TENANT
        return derived_salt(tenant, row.identity_digest, f"{purpose}:{row.item_id}:{self.run.run_id}:{label}")


def is_held_out(row: PlanRow) -> bool:
    """Say whether a row was left cold on purpose; a row that was refused for another reason is not."""
    return row.arm is Arm.HOLDOUT and row.reason == Reason.HOLDOUT


def address_of(row: PlanRow) -> MarkAddress:
    """Return where the mark of a row lives."""
    return MarkAddress(row.tenant, row.identity_digest, row.item_id, row.replica)


def is_prefix(row: PlanRow) -> bool:
    """Say whether a row is a KV prefix."""
    return row.kind is ItemKind.KV_PREFIX
