"""Tuned triggers on later traffic: a fixed 500 ms, random search, TPE and ours, at equal trials, over seeds.

Each setting is tuned on the second and third fifth of a log and scored on its last two; the first fifth is history that
warm-ups may draw on. Restarts and surges are placed by seed, in both parts; nothing of the scored part is
seen while tuning. One evaluator, one rule for choosing among trials (the best that keeps the constraints; without one,
the fixed threshold stays), the same trials for all. ``floor`` is the scored P95 without any restart: no trigger can do
much better than a replica that never loses its cache. Frontier rows give the best P95 of all tried settings by cap.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter
from typing import Any, NamedTuple

from tests.benchmarks import harness
from tests.benchmarks.service_traffic import conversation, service
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.replay.latency import LatencyModel
from warmup_tasks.tuning.evaluation import Evaluator, Service
from warmup_tasks.tuning.objective import TriggerJudge
from warmup_tasks.tuning.scenario import Disturbances, Scenario
from warmup_tasks.tuning.space import search_space
from warmup_tasks.tuning.study import Judgement, Trial, open_study, run_study

SEEDS = 10
TRIALS = 60
PLACEMENTS = 3
HISTORY, TUNED = 0.2, 0.6
SAMPLERS = ("random", "tpe", "ours")
LEAST_SCALE_FOR_ALL = 0.05
CAPS = (0.0, 0.052, 0.1, 0.2, 0.327, 0.5, 1.0)
FIXED = GoldenParameters(trigger_threshold_ms=500.0)


class Setting(NamedTuple):
    """A traffic and the replica that it meets; the first one is what the headline is about."""

    is_conversation: bool
    replica: Service
    seeds: int = 2


ENGINE = LatencyModel()
SETTINGS = {
    "service": Setting(False, Service(16_384, ENGINE, 300.0), SEEDS),
    "service_small_cache": Setting(False, Service(8_192, ENGINE, 300.0)),
    "service_fast_engine": Setting(False, Service(16_384, replace(ENGINE, ms_per_token=0.05), 300.0)),
    "conversation": Setting(True, Service(50_000, replace(ENGINE, ms_per_token=0.05), 3000.0)),
}
HEADLINE = "service"


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Tune and score every setting; a scale below 1 takes fewer seeds and trials."""
    begun = perf_counter()
    trials = max(14, round(TRIALS * min(1.0, scale)))
    names = list(SETTINGS) if scale >= LEAST_SCALE_FOR_ALL else [HEADLINE]
    tasks = [
        (name, seed, trials)
        for seed in range(SEEDS)
        for name in names
        if seed < max(1, round(SETTINGS[name].seeds * min(1.0, scale)))
    ]
    with ProcessPoolExecutor(min(len(tasks), os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        rows = [row for found in pool.map(_score_task, tasks) for row in found]
    scores = {name: [row for row in rows if row["setting"] == name and row["kind"] == "score"] for name in names}
    headline = _headline(scores[HEADLINE])
    for name in names[1:]:
        headline |= {
            f"latency_ratio_to_fixed_{name}": _ratio(scores[name], "ours", "p95_ms"),
            f"floor_{name}": _ratio(scores[name], "floor", "p95_ms"),
            f"rank_ours_{name}": _rank(scores[name]),
        }
    headline["wall_s"] = perf_counter() - begun
    return harness.result("tuning", headline, [*rows, *_spread(rows)])


def _score_task(task: tuple[str, int, int]) -> list[dict[str, Any]]:
    name, seed, trials = task
    return list(_score(name, SETTINGS[name], seed, trials))


def _score(name: str, setting: Setting, seed: int, trials: int) -> Iterator[dict[str, Any]]:
    """Yield rows of one seed: what every contender scored, and the frontier of all that was tried."""
    accesses = conversation() if setting.is_conversation else service(seed)
    begin, end = float(accesses.times_s[0]), float(accesses.times_s[-1])
    cuts = [begin + share * (end - begin) for share in (HISTORY, TUNED, 1.0)]
    tuned, scored = (
        [
            Scenario.of(accesses, since, until, 1000 * seed + 100 * part + place, Disturbances())
            for place in range(PLACEMENTS)
        ]
        for part, (since, until) in enumerate(pairwise(cuts))
    )
    judge = TriggerJudge(Evaluator(tuned, setting.replica), FIXED)
    later = Evaluator(scored, setting.replica)
    final = TriggerJudge(later, FIXED)
    unbroken = Evaluator([replace(scenario, restarts_s=()) for scenario in scored], setting.replica)
    common = {"kind": "score", "setting": name, "seed": seed}
    yield {**common, "contender": "fixed", **_figures(final.judge(final.fixed))}
    yield {**common, "contender": "never", **_figures(final.judge(later.cold))}
    yield {**common, "contender": "floor", **_figures(final.judge(unbroken.cold))}
    tried: list[Trial] = []
    for sampler in SAMPLERS:
        begun = perf_counter()
        found = run_study(
            open_study(sampler, _sampler(sampler, seed)), search_space(), judge, trials=trials, clock=perf_counter
        )
        tried += found.trials
        chosen = dict(found.best.params) if found.best is not None else {}
        yield {
            **common,
            "contender": sampler,
            **_figures(final(chosen) if chosen else final.judge(final.fixed)),
            "tuned_value": found.best.value if found.best is not None else None,
            "best_trial": found.best.number if found.best is not None else None,
            "feasible_trials": sum(trial.is_feasible for trial in found.trials),
            "study_s": perf_counter() - begun,
            "parameters": chosen,
        }
    fixed_p95 = judge.fixed.p95_ms
    for cap in CAPS:
        at_cap = [float(t.facts["p95_ms"] or 0) for t in tried if (t.facts["false_share"] or 0.0) <= cap]
        best = min(at_cap, default=None)
        yield {
            "kind": "frontier",
            "setting": name,
            "seed": seed,
            "contender": f"best at false share up to {cap}",
            "false_share_cap": cap,
            "latency_ratio_to_fixed": None if best is None else best / fixed_p95,
        }


def _sampler(name: str, seed: int) -> Any:
    from optuna.samplers import RandomSampler, TPESampler

    from warmup_tasks.tuning.sampler import GaussianProcessSampler

    if name == "ours":
        return GaussianProcessSampler(seed, search_space())
    return RandomSampler(seed=seed) if name == "random" else TPESampler(seed=seed)


def _figures(judgement: Judgement) -> dict[str, Any]:
    broken = {f"breaks_{name}_by": max(0.0, value) for name, value in judgement.constraints.items()}
    return {"value": judgement.value, **judgement.facts, **broken}


def _of(rows: Sequence[Mapping[str, Any]], contender: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["contender"] == contender]


def _ratio(rows: Sequence[Mapping[str, Any]], contender: str, figure: str) -> float:
    """Return a contender's mean over seeds, over that of the fixed threshold."""
    return mean(row[figure] for row in _of(rows, contender)) / mean(row[figure] for row in _of(rows, "fixed"))


def _mean_of_ratios(rows: Sequence[Mapping[str, Any]], contender: str, figure: str) -> float:
    fixed = {row["seed"]: row[figure] for row in _of(rows, "fixed")}
    return mean(row[figure] / fixed[row["seed"]] for row in _of(rows, contender))


def _rank(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the place of ours by the mean objective on the scored part, 1 being the best of four."""
    values = [mean(row["value"] for row in _of(rows, name)) for name in ("ours", "fixed", "random", "tpe")]
    return float(sorted(values).index(values[0]) + 1)


def _pooled(rows: Sequence[Mapping[str, Any]], contender: str, part: str, whole: str) -> float:
    found = _of(rows, contender)
    return sum(row[part] for row in found) / max(1, sum(row[whole] for row in found))


def _warm_up_latency_s(rows: Sequence[Mapping[str, Any]], contender: str) -> float:
    found = [row["warm_up_latency_s"] for row in _of(rows, contender) if row["warm_up_latency_s"] is not None]
    return mean(found) if found else 0.0


def _headline(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    values = {name: mean(row["value"] for row in _of(rows, name)) for name in ("fixed", *SAMPLERS)}
    recall = {name: _pooled(rows, name, "preceded_surges", "surges") for name in ("fixed", "ours")}
    headline = {
        "latency_ratio_to_fixed": _ratio(rows, "ours", "p95_ms"),
        "false_trigger_share": _pooled(rows, "ours", "false_firings", "firings"),
        "recall_to_fixed": recall["ours"] / recall["fixed"] if recall["fixed"] else 1.0 + recall["ours"],
        "rank_ours": _rank(rows),
        "mean_of_latency_ratios_to_fixed": _mean_of_ratios(rows, "ours", "p95_ms"),
        "false_trigger_share_fixed": _pooled(rows, "fixed", "false_firings", "firings"),
        "recall_ours": recall["ours"],
        "recall_fixed": recall["fixed"],
        "p95_ms_fixed": mean(row["p95_ms"] for row in _of(rows, "fixed")),
        "p95_ms_ours": mean(row["p95_ms"] for row in _of(rows, "ours")),
        "floor": _ratio(rows, "floor", "p95_ms"),
        "warm_up_latency_s_fixed": _warm_up_latency_s(rows, "fixed"),
        "warm_up_latency_s_ours": _warm_up_latency_s(rows, "ours"),
    }
    headline |= {f"latency_ratio_to_fixed_{name}": _ratio(rows, name, "p95_ms") for name in ("random", "tpe")}
    return headline | {f"value_{name}": value for name, value in values.items()}


def _spread(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield mean, deviation and range over seeds of every contender's objective and P95."""
    groups = dict.fromkeys((row["setting"], row["contender"]) for row in rows if row["kind"] == "score")
    for setting, contender in groups:
        found = [row for row in rows if row["kind"] == "score" and row["setting"] == setting]
        own = _of(found, contender)
        summary: dict[str, Any] = {"kind": "spread", "setting": setting, "contender": contender, "seeds": len(own)}
        for figure in ("value", "p95_ms"):
            values = [row[figure] for row in own]
            summary |= {
                f"{figure}_mean": mean(values),
                f"{figure}_deviation": stdev(values) if len(values) > 1 else None,
                f"{figure}_least": min(values),
                f"{figure}_most": max(values),
            }
        ours = {row["seed"]: row["value"] for row in _of(found, "ours")}
        above = [row["value"] - ours[row["seed"]] for row in own]
        summary |= {
            "value_above_ours_mean": mean(above),
            "value_above_ours_deviation": stdev(above) if len(above) > 1 else None,
            "latency_ratio_to_fixed": _ratio(found, contender, "p95_ms"),
        }
        yield summary
