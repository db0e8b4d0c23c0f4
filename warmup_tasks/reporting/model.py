"""The summary's types: what ``out/run/summary.json`` holds. What was not measured is None, never 0. No computing."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from warmup_tasks import __version__

SUMMARY_SCHEMA = 1


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
    """One replica. ``ready_share`` = ready / planned; ``use_share`` = tokens of its ready KV prefixes / capacity.

    ``budget_tokens`` is what the plan was allowed to fill.
    """

    name: str
    profile: str
    model: str
    epoch: str | None
    block_size: int
    capacity_tokens: int
    budget_tokens: int | None
    planned_tokens: int | None
    ready_tokens: int | None
    use_share: float | None
    planned: int | None
    warmed: int | None
    ready: int | None
    ready_share: float | None
    prefill_ms_per_token: float
    contradictions: list[str]


class Cost(Figure):
    """What the plan costs in one place, a replica or a profile's part of the serving store, by the survey's speeds.

    Estimates before anything is warmed, as if requests went one after the other; ``validation_s`` is an upper limit.
    """

    where: str
    items: int
    prefill_tokens: int
    warming_s: float
    validation_s: float
    redis_bytes: int


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
    """Whole prompt blocks found cached / whole prompt blocks asked for, over ``n`` replayed requests, the same in both.

    ``failed_cold`` and ``failed_warm`` requests got no answer: cold, those of adapters that are not loaded yet.
    """

    cold: float | None = None
    warm: float | None = None
    n: int = 0
    failed_cold: int | None = None
    failed_warm: int | None = None


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
    """Gain (cold TTFT less warm, ms) in one stratum: the median of its pairs with the interval that it was judged by.

    ``items`` were planned in the stratum; ``pairs`` of them were measured, cold and warm; ``inferred`` of them take the
    stratum's gain. ``reason`` is why the whole stratum failed, or empty.
    """

    stratum: str
    items: int
    pairs: int
    inferred: int
    gain_ms: float | None
    gain_low_ms: float | None
    gain_high_ms: float | None
    reason: str


class ModelCoverage(Figure):
    """How warm an address is behind which several replicas of a model stand.

    ``ready`` of ``replicas`` are ready, ``missing`` says why another one is not; ``items`` maps ``k of n`` to how many
    items are ready on k of the n replicas.
    """

    ready: int
    replicas: int
    missing: dict[str, str]
    items: dict[str, int]


class Publication(Figure):
    """How the run was judged as a whole (spec 6.6), and its coverage by model; all None when it was not."""

    is_published: bool | None = None
    failure_share: float | None = None
    broken_expectations: list[str] | None = None
    coverage: dict[str, ModelCoverage] | None = None


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


class TunedClass(Figure):
    """What tuning came to for one traffic class.

    ``_last`` are the values that held before, ``_best`` the best trial's, both on newest traffic that no trial saw;
    ``tuned_…_fixed`` is the fixed threshold on the traffic that was tuned on. ``values`` hold from now on.
    """

    traffic_class: str
    verdict: str
    problem: str | None
    requests: int
    trials: int
    objective_last: float | None
    objective_best: float | None
    p95_ms_last: float | None
    p95_ms_best: float | None
    false_share_last: float | None
    false_share_best: float | None
    recall_last: float | None
    recall_best: float | None
    tuned_p95_ms_fixed: float | None
    tuned_false_share_fixed: float | None
    suits_plan: bool | None
    last: dict[str, Any]
    best: dict[str, Any] | None
    values: dict[str, Any]
    total_effects: dict[str, float]


class Tuning(Figure):
    """A run's tuning for later runs: ``off``, ``done``, or ``unfinished``; ``problem`` is why nothing was tuned."""

    state: Literal["off", "unfinished", "done"]
    problem: str | None = None
    classes: list[TunedClass] = []


class EngineName(Figure):
    """What served the run; several names or versions are joined by a comma."""

    name: str | None = None
    version: str | None = None


class RunSummary(Figure):
    """The figures of one run. ``None`` always means *not measured in this run*.

    ``requests_read`` counts every record of the log; ``requests_usable`` those that became rows of the lake.
    """

    schema_version: int = SUMMARY_SCHEMA
    warmup_version: str = __version__
    run_id: str
    as_of: datetime
    requests_read: int | None
    requests_usable: int | None
    rows_quarantined: int | None
    rows_duplicate: int | None
    quarantined_by_reason: dict[str, int] | None
    files: list[str]
    items: Items
    publication: Publication
    held_back: str | None
    cost: list[Cost]
    ready_in_s: float | None
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
    parameter_origins: dict[str, str]
    tuning: Tuning
