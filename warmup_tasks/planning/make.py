"""The plan step: ``demand/<run_id>`` in, ``plan/<run_id>`` out. Pure but for the lake; no engine is asked.

Here the planners of the room are called in order, the plan is checked as a graph, and its figures are summed up.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.items import ItemKind, Payload, PlanRow, Reason, ReplicaState
from warmup_tasks.lake.columns import rows_of, uncollected
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.planning.bill import bill
from warmup_tasks.planning.drafts import Draft, PlanDraft, refused_id
from warmup_tasks.planning.graph import DependencyGraph, Key
from warmup_tasks.planning.prefixes import PrefixPlanner
from warmup_tasks.planning.stores import StorePlanner
from warmup_tasks.runs import Run
from warmup_tasks.settings import HardwareProfile

Row = dict[str, Any]


@uncollected()
def make_plan(
    lake: Lake,
    run: Run,
    fleet: FleetFile,
    profiles: list[HardwareProfile],
    replicas: list[ReplicaState],
    *,
    tombstones: Collection[str] = (),
) -> tuple[str, Row]:
    """Choose and order what is warmed, and publish it with the reasons.

    Args:
        lake: holds ``demand/<run_id>``; ``plan/<run_id>`` (tables ``plan`` and ``payloads``) is written.
        run: as_of, filters, policy, parameters, seed.
        fleet: identities, adapters, tenants' salts.
        profiles: give queues and branches; each has its shards, whether or not items fall into them.
        replicas: the survey.
        tombstones: items that an operator took out; neither they nor what depends on them is chosen.

    Returns:
        The reference, and a small summary: ``shards`` (profile → wave → shard ids), ``counts`` by kind, ``reasons``,
        ``arms``, ``cost`` (see ``bill``), ``capacity`` per replica, ``reuse`` by model (whose prediction counts, and
        how everybody did in the back-test), and what demand left out.

    Raises:
        ConfigurationError: no replica is left, or one has a profile that the profiles file does not know.
        ContractError: there is no demand of this run, or the plan's dependencies contradict each other.
    """
    states = sorted(_asked_for(replicas, run, profiles), key=lambda state: state.replica)
    demand = f"demand/{run.run_id}"
    tables = {name: list(rows_of(lake.read(demand, name))) for name in ("nodes", "prompts", "intents", "adapters")}
    plan = PlanDraft(run, fleet, profiles, states)
    stores = StorePlanner(plan, tables["prompts"], tables["intents"])
    stores.plan_embeddings()
    stores.plan_adapters(tables["adapters"])
    stores.plan_responses()
    stores.plan_questions()
    stores.limit_answers()
    prefixes = PrefixPlanner(plan, tables["nodes"], lake.read(demand, "paths"), stores.adapter_ids)
    for state in states:
        prefixes.plan_replica(state)
    facts = lake.meta(demand)
    _refused(plan, lake.read(demand, "refused").to_pylist(), facts["refused"])
    rows = _without(tombstones, _of_kinds(run.request.kinds, _unique(plan.rows())))
    if run.release:
        rows = [row for row in rows if not run.release.spares(row)]
    DependencyGraph(row for row in rows if row.is_chosen).check_waves()
    needed = dict.fromkeys(row.payload_sha256 for row in rows if row.payload_sha256 is not None)
    payloads = [plan.payloads[sha] for sha in needed]  # in the rows' order: a shard's lie together
    summary = _summary(plan, rows, facts)
    published = {"plan": to_table(rows, PlanRow), "payloads": to_table(payloads, Payload)}
    return lake.publish("plan", run.run_id, published, summary), summary


def _asked_for(replicas: Iterable[ReplicaState], run: Run, profiles: list[HardwareProfile]) -> list[ReplicaState]:
    wanted, models = run.request.replicas, run.request.models
    states = [s for s in replicas if (not wanted or s.replica in wanted) and (not models or s.model in models)]
    if not states:
        raise ConfigurationError("replicas: none of those asked for answered the survey; nothing can be planned")
    unknown = sorted({state.profile for state in states} - {profile.name for profile in profiles})
    if unknown:
        raise ConfigurationError(f"profiles: {', '.join(unknown)} is not in the profiles file; add it with its queue")
    return states


def _refused(plan: PlanDraft, refused: list[Row], counts: dict[str, dict[str, int]]) -> None:
    """Let the refused prompts of demand stand in the plan, with no replica and no payload."""
    shown: Counter[str] = Counter()
    for row in refused:
        is_unknown = row["reason"] == Reason.ADAPTER_UNKNOWN
        identity = plan.identity(row["model"], None if is_unknown else row["adapter"])
        shown[row["reason"]] += 1
        plan.drafts.append(
            Draft(
                kind=ItemKind.KV_PREFIX,
                item_id=refused_id(ItemKind.KV_PREFIX, row, identity),
                profile="",
                replica=None,
                tenant=row["tenant"],
                cache_salt=row["cache_salt"],
                model=row["model"],
                adapter=row["adapter"],
                identity_digest=identity,
                policy="none",
                prompt_tokens=row["prompt_tokens"],
                heat=row["heat_slow"],
                expected_uses=row["expected_uses"],
                reason=row["reason"],
            )
        )
    for reason, count in counts.items():
        plan.not_shown[ItemKind.KV_PREFIX, reason] += count["prompts"] - shown[reason]


def _unique(rows: list[PlanRow]) -> list[PlanRow]:
    """Keep the plan's grain: two refusals of one candidate (two bodies of one prompt) are one row."""
    seen: set[tuple[str, str | None]] = set()
    kept = []
    for row in rows:
        key = (row.item_id, row.replica)
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return kept


def _of_kinds(kinds: Collection[ItemKind], rows: list[PlanRow]) -> list[PlanRow]:
    """Keep the rows of the kinds that are asked for, and of the chosen ones what they depend on."""
    if not kinds:
        return rows
    by_name = {(row.profile, row.item_id): row for row in rows if row.is_chosen}
    kept: set[tuple[str, str]] = set()
    open_ends = [(row.profile, row.item_id) for row in rows if row.is_chosen and row.kind in kinds]
    while open_ends:
        name = open_ends.pop()
        if name in by_name and name not in kept:
            kept.add(name)
            open_ends += [(name[0], needed) for needed in by_name[name].depends_on]
    return [row for row in rows if (row.profile, row.item_id) in kept or (row.kind in kinds and not row.is_chosen)]


def _without(tombstones: Collection[str], rows: list[PlanRow]) -> list[PlanRow]:
    """Refuse the items that were taken out, and what then has lost a dependency."""
    out = {Key(row.item_id, row.replica) for row in rows if row.is_chosen and row.item_id in tombstones}
    if not out:
        return rows
    fallen = DependencyGraph(row for row in rows if row.is_chosen).dependants_to_skip(out)
    reasons = {**dict.fromkeys(fallen, Reason.DEPENDENCY_FAILED), **dict.fromkeys(out, Reason.TOMBSTONED)}
    chosen = [(row, reasons.get(Key(row.item_id, row.replica)) if row.is_chosen else None) for row in rows]
    kept = {(row.profile, row.item_id) for row, reason in chosen if row.is_chosen and reason is None}
    return [_judged(row, reason, kept) if row.is_chosen else row for row, reason in chosen]


def _judged(row: PlanRow, reason: Reason | None, kept: Collection[tuple[str, str]]) -> PlanRow:
    if reason is not None:
        return row.model_copy(update={"is_chosen": False, "reason": str(reason)})
    return row.model_copy(update={"depends_on": [name for name in row.depends_on if (row.profile, name) in kept]})


def _summary(plan: PlanDraft, rows: list[PlanRow], facts: Row) -> Row:
    chosen = [row for row in rows if row.is_chosen]
    reasons = Counter((row.kind, row.reason) for row in rows if not row.is_chosen) + plan.not_shown
    return {
        "shards": plan.shards(),
        "counts": dict(sorted(Counter(str(row.kind) for row in chosen).items())),
        "arms": dict(
            sorted(Counter(str(row.arm) for row in rows if row.is_chosen or row.reason == Reason.HOLDOUT).items())
        ),
        "reasons": _nested(reasons),
        "cost": bill(plan.run, plan.states, chosen, plan.fleet.embedder.dimensions),
        "capacity": plan.facts.get("capacity", {}),
        "reuse": facts.get("reuse", {}),
        "nodes_dropped": facts["nodes_dropped"],
        "requests": facts["requests"],
        "not_served": facts["not_served"],
        "without_content": facts["without_content"],
        "without_replica": facts["without_replica"],
    }


def _nested(reasons: Counter[tuple[ItemKind, str]]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (kind, reason), count in sorted((key, count) for key, count in reasons.items() if count):
        nested.setdefault(str(kind), {})[str(reason)] = count
    return nested
