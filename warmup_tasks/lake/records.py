"""Records of one run, read from the lake: the plan with its payloads, and whatever many tasks wrote a part of.

Here live the few reads that several rooms share. What the records mean is in ``items.py``; no writing, no decision.
"""

from dataclasses import dataclass
from typing import TypeVar

from warmup_tasks.errors import ContractError
from warmup_tasks.items import Payload, PlanRow, Receipt, Record
from warmup_tasks.lake.schemas import from_table
from warmup_tasks.lake.store import Lake

RecordT = TypeVar("RecordT", bound=Record)
Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The newest plan of a run: every row, chosen or not, and what must be sent."""

    rows: list[PlanRow]
    payloads: dict[str, Payload]

    def payload(self, row: PlanRow) -> Payload:
        """Return what must be sent for ``row``.

        Raises:
            ContractError: the plan names a payload that it does not hold, or none.
        """
        found = self.payloads.get(row.payload_sha256 or "")
        if found is None:
            raise ContractError(f"plan of {row.run_id}: item {row.item_id} has no payload")
        return found


def key_of(record: PlanRow | Receipt) -> Key:
    """Return the grain of plan, receipts and evidence: (item_id, replica)."""
    return record.item_id, record.replica


def read_plan(lake: Lake, run_id: str) -> Plan:
    """Return the newest plan of a run.

    Raises:
        ContractError: there is no plan.
    """
    ref = f"plan/{run_id}"
    payloads = from_table(lake.read(ref, "payloads"), Payload)
    return Plan(from_table(lake.read(ref, "plan"), PlanRow), {payload.payload_sha256: payload for payload in payloads})


def partitions_of(lake: Lake, dataset: str, run_id: str) -> list[str]:
    """Return the references of a run's partitions: ``dataset/<run_id>.<part>``, sorted."""
    return [f"{dataset}/{name}" for name in lake.partitions(dataset) if name.startswith(f"{run_id}.")]


def read_all(lake: Lake, dataset: str, run_id: str, record: type[RecordT]) -> list[RecordT]:
    """Return the records of all of a run's partitions; the table is called as the data set."""
    return [row for ref in partitions_of(lake, dataset, run_id) for row in from_table(lake.read(ref, dataset), record)]


def read_part(lake: Lake, dataset: str, partition: str, record: type[RecordT]) -> list[RecordT]:
    """Return the records of one partition, none where it was not published."""
    try:
        return list(from_table(lake.read(f"{dataset}/{partition}", dataset), record))
    except ContractError:
        if lake.latest(dataset, partition) is None:
            return []
        raise
