"""Records of one run, read from the lake: the plan with its payloads, and whatever many tasks wrote a part of.

Here live the few reads that several rooms share. What the records mean is in ``items.py``; no writing, no decision.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from warmup_tasks.errors import ContractError
from warmup_tasks.items import Payload, PlanRow, Receipt, Record
from warmup_tasks.lake.schemas import PAYLOADS, from_table
from warmup_tasks.lake.selection import Where
from warmup_tasks.lake.store import Lake

RecordT = TypeVar("RecordT", bound=Record)
Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The newest plan of a run, or some of its rows, chosen or not, and what must be sent for them."""

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


def read_plan(lake: Lake, run_id: str, where: Where | None = None, *, without: Collection[str] = ()) -> Plan:
    """Return the newest plan of a run, or some of its rows, with the payloads of these.

    Args:
        lake: the lake.
        run_id: the run.
        where: plan column → values, for instance ``{"shard": [shard]}``; None returns the whole plan.
        without: payload columns that are not read and are None: who does not send prompts reads far less.

    Raises:
        ContractError: there is no plan.
    """
    ref = f"plan/{run_id}"
    rows = from_table(lake.read(ref, "plan", where=where), PlanRow)
    needed = None if where is None else {row.payload_sha256 for row in rows if row.payload_sha256 is not None}
    columns = [name for name in PAYLOADS.names if name not in without]
    found = lake.read(ref, "payloads", columns, None if needed is None else {"payload_sha256": needed})
    for name in without:
        found = found.append_column(name, pa.nulls(found.num_rows, PAYLOADS.field(name).type))
    return Plan(rows, {payload.payload_sha256: payload for payload in from_table(found, Payload)})


def partitions_of(lake: Lake, dataset: str, run_id: str, part: str = "") -> list[str]:
    """Return the references of a run's partitions: ``dataset/<run_id>.<part…>``, sorted."""
    return [f"{dataset}/{name}" for name in lake.partitions(dataset, f"{run_id}.{part}")]


def read_all(lake: Lake, dataset: str, run_id: str, record: type[RecordT], part: str = "") -> list[RecordT]:
    """Return the records of a run's partitions, of those that begin with ``part``; the table is named as the data set.

    A profile's partitions begin with its name, but so may those of another profile.
    """
    refs = partitions_of(lake, dataset, run_id, part)
    return [row for ref in refs for row in from_table(lake.read(ref, dataset), record)]


def read_part(lake: Lake, dataset: str, partition: str, record: type[RecordT]) -> list[RecordT]:
    """Return the records of one partition, none where it was not published."""
    try:
        return from_table(lake.read(f"{dataset}/{partition}", dataset), record)
    except ContractError:
        if lake.latest(dataset, partition) is None:
            return []
        raise
