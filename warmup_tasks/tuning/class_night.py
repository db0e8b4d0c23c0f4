"""One traffic class's night: its log, its judges, its study, its verdict.

The newest part of the log is kept out of the study; only what does better there than last night's values replaces them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.replay.accesses import Accesses
from warmup_tasks.runs import Run
from warmup_tasks.tuning import published
from warmup_tasks.tuning.evaluation import Evaluator, Service
from warmup_tasks.tuning.objective import TriggerJudge
from warmup_tasks.tuning.plan_check import suits_plan
from warmup_tasks.tuning.replicas import Replicas
from warmup_tasks.tuning.scenario import LEAST_REQUESTS, Disturbances, Scenario
from warmup_tasks.tuning.sensitivity import Sensitivity, sensitivity
from warmup_tasks.tuning.space import JUDGED_BY_REPLAY, search_space
from warmup_tasks.tuning.stopping import Plateau
from warmup_tasks.tuning.study import Judge, Judgement, StudyResult, Trial, close_family, open_study, run_study
from warmup_tasks.tuning.traffic import TrafficClass, busiest, class_accesses, every_nth

Facts = dict[str, Any]
MakeJudge = Callable[[TriggerJudge], Judge]

HELD_OUT_SHARE = 0.3
"""Of the window, at its newest end: values are accepted on it and never tuned on it."""
STRETCH_S = 3600.0
"""At most so much of either part is played: the hour with most requests."""
MOST_REQUESTS = 20_000
"""Of a stretch; busier hours are played in part, so that a trial takes seconds, whatever the traffic."""
LEAST_PER_LIFE = 150
"""Requests between two restarts; with fewer nothing can be said of a P95."""
PLACEMENTS = 2
WEEK = timedelta(days=6, hours=12)
"""A weekly parameter is due when it was tuned longer ago than this: nights begin at slightly different times."""


class Verdict(StrEnum):
    """What became of a class's values."""

    TUNED = "tuned values published"
    KEPT = "last values stay: nothing did better on the newest traffic"
    NOT_FEASIBLE = "last values stay: no trial kept the constraints"
    ALL_PRUNED = "last values stay: all trials were pruned"
    NO_TIME = "last values stay: no time was left"
    TOO_LITTLE = "last values stay: too little traffic to judge settings on"
    FAILED = "last values stay: tuning failed"


@dataclass(frozen=True, slots=True)
class Budget:
    """How much tuning may cost.

    Attributes:
        time_s: for all classes together, shared by their requests.
        clock: seconds, never falling.
        trials: for each class.
    """

    time_s: float
    clock: Callable[[], float]
    trials: int = 60


@dataclass(frozen=True, slots=True)
class ClassResult:
    """What a class's night came to: ``facts`` as in ``tuning_nights/<run>``, and the study behind them."""

    facts: Facts
    trials: tuple[Trial, ...] = ()
    told: Sensitivity = field(default_factory=lambda: Sensitivity({}, []))


class ClassNight:
    """Tunes one class.

    Args:
        lake: holds the log and earlier nights' values; receives this night's.
        run: as_of, lookback, seed.
        traffic: the class.
        replicas: that serve its model.
        share: of the model's requests that are the class's, and so of its cache.
        slo_ms: of the time to first token; an evaluation constant.
    """

    def __init__(
        self, lake: Lake, run: Run, traffic: TrafficClass, replicas: Replicas, share: float, slo_ms: float
    ) -> None:
        self._lake, self._run, self._traffic, self._replicas = lake, run, traffic, replicas
        self._last = published.tuned_values(lake, traffic.model, traffic.adapter, traffic.request_type, run.as_of)
        self._base = GoldenParameters()
        self._share, self._slo_ms = share, slo_ms

    def tune(self, journal: str | Path | None, budget: Budget, time_s: float, judge_of: MakeJudge) -> ClassResult:
        """Return what the night came to; publishes when values are accepted."""
        if time_s <= 0:
            return self.kept(Verdict.NO_TIME)
        accesses = self._accesses()
        try:
            judge, later = (self._judge(accesses, part) for part in ("earlier", "later"))
        except ConfigurationError:
            return self.kept(Verdict.TOO_LITTLE)
        space, held = search_space(self._due()), self._held()
        found = self._search(space, held, judge_of(judge), journal, budget, time_s)
        told = sensitivity(found.trials, space, self._run.request.seed)
        figures = self._figures(found, told) | {"fixed": dict(judge.judge(judge.fixed).facts)}
        if found.best is None:
            return replace(self.kept(_why_none(found), **figures), trials=found.trials, told=told)
        values = {**held, **found.best.params}
        tuned, last = later(values), later(held)
        fixed = later.judge(later.fixed)
        figures["later"] = {"best": _told(tuned), "last": _told(last), "fixed": _told(fixed)}
        figures["best"] = values
        if not _is_accepted(tuned, last if self._last is not None else None, later.base_value):
            return replace(self.kept(Verdict.KEPT, **figures), trials=found.trials, told=told)
        suits = suits_plan(later.evaluator, later.parameters(values), self._base)
        meta = self._meta(space, suits)
        ref = published.publish(self._lake, self._traffic.name, self._run.as_of, values, told, meta)
        facts = {**self._facts(Verdict.TUNED), **figures, "ref": ref, "values": values, "suits_plan": suits}
        return ClassResult(facts, found.trials, told)

    def kept(self, verdict: Verdict, **figures: Any) -> ClassResult:
        """Return the result of a night that leaves the last values alone."""
        return ClassResult({**self._facts(verdict), **figures})

    def _facts(self, verdict: Verdict) -> Facts:
        ref = self._last.ref if self._last is not None else None
        suits = self._last.suits_plan if self._last is not None else None
        return {
            "verdict": str(verdict),
            "requests": self._traffic.requests,
            "ref": ref,
            "suits_plan": suits,
            "values": self._held(),
            "last": self._held(),
        }

    def _figures(self, found: StudyResult, told: Sensitivity) -> Facts:
        return {
            "trials": found.states,
            "stale_closed": found.stale_closed,
            "stop": str(found.stop),
            "total_effects": dict(told.effects),
        }

    def _meta(self, space: Facts, suits: bool) -> Facts:
        return {
            "run_id": self._run.run_id,
            "model": self._traffic.model,
            "adapter": self._traffic.adapter,
            "request_type": self._traffic.request_type,
            "requests": self._traffic.requests,
            "suits_plan": suits,
            "tuned_at": {**self._tuned_at(), **dict.fromkeys(space, self._run.as_of.isoformat())},
        }

    def _search(
        self,
        space: Facts,
        held: Facts,
        judged: Judge,
        journal: str | Path | None,
        budget: Budget,
        time_s: float,
    ) -> StudyResult:
        from warmup_tasks.tuning.sampler import GaussianProcessSampler

        stale = close_family(journal, f"{self._traffic.name}@") if journal is not None else 0
        name = f"{self._traffic.name}@{self._run.as_of:%Y%m%dT%H%M%SZ}"
        found = run_study(
            open_study(name, GaussianProcessSampler(self._run.request.seed, space), journal),
            space,
            lambda params: judged({**held, **params}),
            trials=budget.trials,
            clock=budget.clock,
            time_budget_s=time_s,
            first=[{name: values[name] for name in space} for values in (held, self._base.model_dump(mode="json"))],
            plateau=Plateau(),
        )
        return replace(found, stale_closed=found.stale_closed + stale)

    def _accesses(self) -> Accesses | None:
        since = self._run.as_of - timedelta(seconds=self._run.policy.lookback_s)
        found = class_accesses(self._lake, self._traffic, since, self._run.as_of, self._replicas.block_tokens)
        return None if found is None else every_nth(found, self._replicas.count)

    def _judge(self, accesses: Accesses | None, part: str) -> TriggerJudge:
        """Return the judge on the busiest hour of the earlier or the later part of the window."""
        if accesses is None or len(accesses) < LEAST_REQUESTS:
            raise ConfigurationError("tuning: too few requests")
        first, last = float(accesses.times_s[0]), float(accesses.times_s[-1])
        cut = last - HELD_OUT_SHARE * (last - first)
        since, until = (first, cut) if part == "earlier" else (cut, last)
        begin, end = busiest(accesses.times_s, since, until, STRETCH_S, MOST_REQUESTS)
        rate = len(accesses.between(begin, end)) / max(1.0, end - begin)
        usual = Disturbances()
        life_s = min(max(usual.life_s, LEAST_PER_LIFE / max(rate, 1e-9)), (end - begin) / 2)
        disturbances = Disturbances(life_s=life_s, surge_every_s=max(usual.surge_every_s, life_s))
        seed = 10 * self._run.request.seed + (0 if part == "earlier" else 5)
        scenarios = [Scenario.of(accesses, begin, end, seed + place, disturbances) for place in range(PLACEMENTS)]
        capacity = int(self._replicas.capacity_tokens * self._share // accesses.block_tokens)
        return TriggerJudge(Evaluator(scenarios, Service(capacity, self._replicas.latency, self._slo_ms)), self._base)

    def _due(self) -> list[str]:
        """Return the parameters to search tonight: nightly ones always, the others when they are due again."""
        tuned_at = self._tuned_at()
        names = []
        for name in JUDGED_BY_REPLAY:
            extra = GoldenParameters.model_fields[name].json_schema_extra
            is_nightly = isinstance(extra, dict) and extra["retune"] == "nightly"
            last = tuned_at.get(name)
            if is_nightly or last is None or self._run.as_of - datetime.fromisoformat(last) >= WEEK:
                names.append(name)
        return names

    def _held(self) -> Facts:
        """Return the last values of what the replay judges, or the defaults."""
        values = self._base.model_dump(mode="json")
        values.update(self._last.values if self._last is not None else {})
        return {name: values[name] for name in JUDGED_BY_REPLAY}

    def _tuned_at(self) -> dict[str, str]:
        return self._last.tuned_at if self._last is not None else {}


def _told(judgement: Judgement) -> Facts:
    return {"objective": judgement.value, **judgement.facts}


def _is_accepted(tuned: Judgement, last: Judgement | None, default_value: float) -> bool:
    """Say whether values that kept the constraints on newer traffic, too, beat the defaults and the last ones there."""
    if not _keeps_all(tuned) or tuned.value >= default_value:
        return False
    return last is None or not _keeps_all(last) or tuned.value < last.value


def _keeps_all(judgement: Judgement) -> bool:
    return all(value <= 0 for value in judgement.constraints.values())


def _why_none(found: StudyResult) -> Verdict:
    if not found.trials:
        return Verdict.NO_TIME
    return Verdict.ALL_PRUNED if all(trial.value is None for trial in found.trials) else Verdict.NOT_FEASIBLE
