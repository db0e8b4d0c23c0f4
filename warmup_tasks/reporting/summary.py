"""From a run's data sets to its summary: each figure measured in that run, null where it was not.

Here live the joins between :mod:`figures` and the summary's types; the report and the console show the same object.
"""

from collections.abc import Mapping

from warmup_tasks.items import ItemKind
from warmup_tasks.lake.columns import uncollected
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.reporting import figures
from warmup_tasks.reporting.collect import RunData, collect, rows
from warmup_tasks.reporting.model import (
    Cost,
    Distribution,
    EngineName,
    HitRatio,
    HoldoutCounts,
    ItemCounts,
    Items,
    PrefillTokens,
    Prefix,
    Publication,
    ReasonCount,
    ReplicaFigures,
    RunSummary,
    StratumGain,
    Ttft,
    Tuning,
)
from warmup_tasks.reporting.tuning import OFF, UNFINISHED, tuning_of
from warmup_tasks.runs import Run

__all__ = ["RunSummary", "summarise"]

TOP_PREFIXES = 10


@uncollected()
def summarise(
    lake: Lake, run: Run, *, stages_s: Mapping[str, float] | None = None, task_count: int | None = None
) -> RunSummary:
    """Return the summary of one run, from what its tasks published; changes nothing.

    Args:
        lake: where the run's data sets lie.
        run: the run; a run that stopped half-way gives null for what is missing.
        stages_s: seconds each stage took, by the caller's clock.
        task_count: tasks of the run that did it.
    """
    data = collect(lake, run)
    extraction = data.extraction or {}
    fates = figures.fates(data)
    return RunSummary(
        run_id=run.run_id,
        as_of=run.as_of,
        requests_read=extraction.get("requests_read"),
        requests_usable=extraction.get("requests_usable"),
        rows_quarantined=extraction.get("rows_quarantined"),
        rows_duplicate=extraction.get("duplicates"),
        quarantined_by_reason=extraction.get("quarantined_by_reason"),
        files=[file["file"] for file in extraction.get("files", [])],
        items=_items(data, fates),
        publication=Publication(**(data.publication or {})),
        held_back=(data.held_back or {}).get("why") or None,
        cost=_cost(data),
        ready_in_s=(data.plan_meta or {}).get("cost", {}).get("ready_in_s"),
        replicas=_replicas(data, fates),
        ttft_ms=_ttft(data),
        block_hit_ratio=HitRatio(**figures.hit_ratio(data)),
        prefill_tokens=PrefillTokens(**figures.prefill_tokens(data)),
        gains=[StratumGain(**row) for row in figures.gains(data)],
        holdout=HoldoutCounts(**counts) if (counts := figures.holdout(data)) else None,
        reasons=[ReasonCount(**row) for row in figures.reasons(data, fates)],
        top_prefixes=_top_prefixes(data, fates),
        stages_s=dict(stages_s) if stages_s is not None else None,
        task_count=task_count,
        engine=_engine(data),
        parameters=run.parameters.model_dump(mode="json"),
        parameters_version=run.parameters.version(),
        parameter_origins={name: run.origins.told(name) for name in GoldenParameters.model_fields},
        tuning=_tuning(data, run),
    )


def _cost(data: RunData) -> list[Cost]:
    told = (data.plan_meta or {}).get("cost", {})
    places = {f"store of {name}": row for name, row in told.get("stores", {}).items()} | told.get("replicas", {})
    return [Cost(where=name, **row) for name, row in sorted(places.items())]


def _tuning(data: RunData, run: Run) -> Tuning:
    if data.tuning is not None:
        return tuning_of(data.tuning)
    return OFF if run.request.dry_run or not run.request.tuning_time_s else UNFINISHED


def _items(data: RunData, fates: list[figures.Fate]) -> Items:
    refused = figures.refused(data)
    by_kind = {
        kind: ItemCounts(
            **figures.counts(data, [fate for fate in fates if fate.kind == kind]), refused=refused.get(kind, 0)
        )
        for kind in sorted({fate.kind for fate in fates} | set(refused))
    }
    total = None if data.plan is None else sum(refused.values())
    return Items(**figures.counts(data, fates), refused=total, by_kind=by_kind)


def _replicas(data: RunData, fates: list[figures.Fate]) -> list[ReplicaFigures]:
    columns = (
        "replica", "profile", "model", "epoch", "block_size", "capacity_tokens", "prefill_ms_per_token",
        "contradictions",
    )  # fmt: skip
    found = []
    for row in rows(data.replicas, columns):
        name = row.pop("replica")
        mine = [fate for fate in fates if fate.replica == name]
        counts = figures.counts(data, mine)
        budget_blocks = (data.plan_meta or {}).get("capacity", {}).get(name, {}).get("plan_blocks")
        planned_tokens, ready_tokens = figures.resident_tokens(data, mine)
        found.append(
            ReplicaFigures(
                name=name,
                budget_tokens=None if budget_blocks is None else budget_blocks * row["block_size"],
                planned_tokens=planned_tokens,
                ready_tokens=ready_tokens,
                use_share=figures.share(ready_tokens, row["capacity_tokens"]),
                planned=counts["planned"],
                warmed=counts["warmed"],
                ready=counts["ready"],
                ready_share=figures.share(counts["ready"], counts["planned"]),
                **row,
            )
        )
    return sorted(found, key=lambda replica: replica.name)


def _ttft(data: RunData) -> Ttft:
    pairs = figures.ttft_pairs(data)
    return Ttft(
        cold=Distribution(**figures.distribution([pair["cold_ms"] for pair in pairs])),
        warm=Distribution(**figures.distribution([pair["warm_ms"] for pair in pairs])),
    )


def _top_prefixes(data: RunData, fates: list[figures.Fate]) -> list[Prefix]:
    prefixes = [o for o in fates if o.kind == ItemKind.KV_PREFIX and o.is_planned]
    prefixes.sort(key=lambda o: (-o.heat, o.item_id, o.replica or ""))
    return [
        Prefix(
            item_id=o.item_id,
            replica=o.replica,
            tenant=o.tenant,
            adapter=o.adapter,
            prompt_tokens=o.prompt_tokens,
            heat=o.heat,
            expected_uses=o.expected_uses,
            is_ready=o.is_ready if data.marks is not None else None,
        )
        for o in prefixes[:TOP_PREFIXES]
    ]


def _engine(data: RunData) -> EngineName:
    found = rows(data.replicas, ("engine", "version"))
    names, versions = sorted({row["engine"] for row in found}), sorted({row["version"] for row in found})
    return EngineName(name=", ".join(names) or None, version=", ".join(versions) or None)
