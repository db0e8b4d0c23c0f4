"""The sample: which items get a cold twin, a compared answer and a control (spec 6.1).

Pure: plan rows in, keys out. Twins and probes draw the same sample from the same plan; neither hands it on.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from warmup_tasks.identity import digest
from warmup_tasks.items import Arm, ItemKind, PlanRow
from warmup_tasks.lake.records import Key, key_of

BANDS: tuple[tuple[int, str], ...] = ((256, "under 256"), (1024, "256 to 1023"), (4096, "1024 to 4095"))
LAST_BAND = "4096 and more"


def length_band(prompt_tokens: int) -> str:
    """Return the band of a prompt's length in tokens."""
    return next((name for end, name in BANDS if prompt_tokens < end), LAST_BAND)


def stratum_of(row: PlanRow) -> str:
    """Return the stratum of a row: replica × tenant × length band; values in the store are told apart by their kind."""
    where = row.replica or f"store of {row.profile}"
    what = length_band(row.prompt_tokens) if row.kind is ItemKind.KV_PREFIX else str(row.kind)
    return " | ".join((where, row.tenant or "no tenant", what))


def draw(rows: Iterable[PlanRow], *, per_stratum: int, per_replica: int, seed: int) -> set[Key]:
    """Return the keys of the sampled KV prefixes.

    First one prefix of each adapter on each replica, whatever the limits; beside them, stratum by stratum in turn, up
    to ``per_stratum`` each, while the replica has fewer than ``per_replica``.

    Args:
        rows: of a plan; only chosen KV prefixes of the warm arm are looked at.
        per_stratum: wanted number in each stratum, where there are as many.
        per_replica: limit of all twins on one replica, since each costs a full prefill.
        seed: of the run; the order within a stratum follows from it and from the item alone.
    """
    by_replica: dict[str | None, list[PlanRow]] = defaultdict(list)
    for row in rows:
        if row.kind is ItemKind.KV_PREFIX and row.is_chosen and row.arm is Arm.WARM:
            by_replica[row.replica].append(row)
    chosen: set[Key] = set()
    for replica in sorted(by_replica, key=str):
        shuffled = sorted(by_replica[replica], key=lambda row: digest([seed, row.item_id, row.replica]))
        chosen |= _of_replica(shuffled, per_stratum, per_replica)
    return chosen


def _of_replica(rows: Sequence[PlanRow], per_stratum: int, limit: int) -> set[Key]:
    adapters: dict[str, PlanRow] = {}
    for row in rows:
        if row.adapter is not None:
            adapters.setdefault(row.adapter, row)
    chosen = {key_of(row): row for row in adapters.values()}
    strata: dict[str, list[PlanRow]] = defaultdict(list)
    for row in rows:
        strata[stratum_of(row)].append(row)
    counts = dict.fromkeys(strata, 0)
    waiting = {name: [row for row in members if key_of(row) not in chosen] for name, members in strata.items()}
    while len(chosen) < limit:
        open_strata = [name for name in sorted(waiting) if waiting[name] and counts[name] < per_stratum]
        if not open_strata:
            break
        for name in open_strata[: limit - len(chosen)]:
            row = waiting[name].pop(0)
            chosen[key_of(row)] = row
            counts[name] += 1
    return set(chosen)
