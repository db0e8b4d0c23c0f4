"""The run summary: the headline figures of one night, each measured in that run.

Here live the summary's model and the function that fills it from the lake. What was not measured is null, never 0.
The JSON of :class:`RunSummary` is ``out/run/summary.json``; the report and the console show the same object.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from warmup_tasks import __version__
from warmup_tasks.lake.store import Lake
from warmup_tasks.reporting import figures
from warmup_tasks.reporting.collect import RunData, collect, rows
from warmup_tasks.runs import Run

SUMMARY_SCHEMA = 1
TOP_PREFIXES = 10


class Figure(BaseModel):
    """Base of all parts of the summary: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ItemCounts(Figure):
    """How many items came how far. An item counts once a replica; a value in the serving store counts once.

    planned = ready + skipped + rejected + unverified + unaccounted, and warmed = validated + unverified + those that no
    probe reached.

    Attributes:
        planned: chosen by the plan, in the warm arm.
        refused: considered and not chosen; the reasons say why.
        held_out: left cold on purpose, to measure the effect (spec 2.5).
        warmed: the engine or the store answered well.
        validated: validation reached a verdict, hit or miss.
        ready: a mark was published.
        skipped: a dependency failed, or its replica changed.
        rejected: refused or failed in warming, or not passed by validation.
        unverified: the engine did not say whether it is resident.
        unaccounted: planned, and no receipt or evidence tells what became of it.
    """

    planned: int | None = None
    refused: int | None = None
    held_out: int | None = None
    warmed: int | None = None
    validated: int | None = None
    ready: int | None = None
    skipped: int | None = None
    rejected: int | None = None
    unverified: int | None = None
    unaccounted: int | None = None


class Items(ItemCounts):
    """The counts over all kinds, and by kind."""

    by_kind: dict[str, ItemCounts] = {}


class ReplicaFigures(Figure):
    """One replica. ``ready_share`` = ready / planned; ``use_share`` = tokens of its ready KV prefixes / capacity."""

    name: str
    profile: str
    model: str
    epoch: str | None
    block_size: int
    capacity_tokens: int
    planned_tokens: int | None
    ready_tokens: int | None
    use_share: float | None
    planned: int | None
    warmed: int | None
    ready: int | None
    ready_share: float | None
    prefill_ms_per_token: float
    contradictions: list[str]


class Distribution(Figure):
    """Percentiles of n measured values, in ms."""

    p50: float | None = None
    p95: float | None = None
    n: int = 0


class Ttft(Figure):
    """Time to first token of the same sampled items: cold by their salted twins, warm by their probes (spec 6)."""

    cold: Distribution = Distribution()
    warm: Distribution = Distribution()


class HitRatio(Figure):
    """Whole prompt blocks found cached / whole prompt blocks asked for, over the replayed requests of either state."""

    cold: float | None = None
    warm: float | None = None
    n_cold: int = 0
    n_warm: int = 0


class PrefillTokens(Figure):
    """Prompt tokens that the engines computed.

    Attributes:
        warming: for warming; where the engine did not say how many were computed, the whole prompt counts.
        validation: for twins, probes, controls and the survey of replicas (spec 6.7).
        unique: that the warmed KV prefixes hold, each shared block once.
    """

    warming: int | None = None
    validation: int | None = None
    unique: int | None = None


class StratumGain(Figure):
    """Gain (cold TTFT less warm, ms) in one stratum: measured on the sample with a 95 % interval, else inferred."""

    stratum: str
    n_measured: int
    mean_gain_ms: float | None
    low_ms: float | None
    high_ms: float | None
    n_inferred: int
    expected_gain_ms: float | None


class HoldoutCounts(Figure):
    """The two arms of the randomised comparison (spec 2.5), counted at subtree roots and at items."""

    roots_warm: int
    roots_held_out: int
    items_warm: int
    items_held_out: int


class ReasonCount(Figure):
    """Why items are not ready: where that was decided, how many, and what an operator can do."""

    reason: str
    step: str
    kind: str
    n_items: int
    advice: str


class Prefix(Figure):
    """One of the hottest KV prefixes, by id; never its text."""

    item_id: str
    replica: str | None
    tenant: str | None
    adapter: str | None
    prompt_tokens: int
    heat: float
    expected_uses: float
    is_ready: bool | None


class EngineName(Figure):
    """What served the run; several names or versions are joined by a comma."""

    name: str | None = None
    version: str | None = None


class RunSummary(Figure):
    """The figures of one run. ``None`` always means *not measured in this run*."""

    schema_version: int = SUMMARY_SCHEMA
    warmup_version: str = __version__
    run_id: str
    as_of: datetime
    requests_read: int | None
    rows_quarantined: int | None
    rows_duplicate: int | None
    files: list[str]
    items: Items
    replicas: list[ReplicaFigures]
    ttft_ms: Ttft
    block_hit_ratio: HitRatio
    prefill_tokens: PrefillTokens
    gains: list[StratumGain]
    holdout: HoldoutCounts | None
    reasons: list[ReasonCount]
    top_prefixes: list[Prefix]
    stages_s: dict[str, float] | None
    task_count: int | None
    engine: EngineName
    parameters: dict[str, Any]
    parameters_version: str


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
        requests_read=figures.first(extraction, "requests", "usable", "requests_read"),
        rows_quarantined=figures.first(extraction, "quarantined", "rows_quarantined"),
        rows_duplicate=figures.first(extraction, "duplicates", "rows_duplicate"),
        files=figures.file_names(extraction.get("files")),
        items=_items(data, fates),
        replicas=_replicas(data, fates),
        ttft_ms=_ttft(data),
        block_hit_ratio=_hit_ratio(data),
        prefill_tokens=PrefillTokens(**figures.prefill_tokens(data)),
        gains=[StratumGain(**row) for row in figures.gains(data)],
        holdout=HoldoutCounts(**counts) if (counts := figures.holdout(data)) else None,
        reasons=[ReasonCount(**row) for row in figures.reasons(fates)],
        top_prefixes=_top_prefixes(data, fates),
        stages_s=dict(stages_s) if stages_s is not None else None,
        task_count=task_count,
        engine=_engine(data),
        parameters=run.parameters.model_dump(mode="json"),
        parameters_version=run.parameters.version(),
    )


def _items(data: RunData, fates: list[figures.Fate]) -> Items:
    kinds = sorted({fate.kind for fate in fates})
    by_kind = {
        kind: ItemCounts(**figures.counts(data, [fate for fate in fates if fate.kind == kind])) for kind in kinds
    }
    return Items(**figures.counts(data, fates), by_kind=by_kind)


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
        planned_tokens, ready_tokens = figures.resident_tokens(data, mine)
        found.append(
            ReplicaFigures(
                name=name,
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


def _hit_ratio(data: RunData) -> HitRatio:
    cold, n_cold = figures.hit_ratio(data.replay_cold)
    warm, n_warm = figures.hit_ratio(data.replay_warm)
    return HitRatio(cold=cold, warm=warm, n_cold=n_cold, n_warm=n_warm)


def _top_prefixes(data: RunData, fates: list[figures.Fate]) -> list[Prefix]:
    prefixes = [o for o in fates if o.kind == "kv_prefix" and o.is_planned]
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
