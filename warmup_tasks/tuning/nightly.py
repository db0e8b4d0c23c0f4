"""The tuning step of a night: for each traffic class a study on its own log, and values for the next plan.

The newest part of the log is kept out of the study; only what does better there than last night's values replaces them.
Whatever goes wrong with a study, last night's values stay, and the summary says so.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Any

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import ReplicaState
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.replay.accesses import Accesses
from warmup_tasks.replay.latency import LatencyModel
from warmup_tasks.runs import Run
from warmup_tasks.settings import FleetFile
from warmup_tasks.tuning import published
from warmup_tasks.tuning.evaluation import Evaluator, Service
from warmup_tasks.tuning.objective import TriggerJudge
from warmup_tasks.tuning.plan_check import suits_plan
from warmup_tasks.tuning.scenario import LEAST_REQUESTS, Disturbances, Scenario
from warmup_tasks.tuning.sensitivity import sensitivity
from warmup_tasks.tuning.space import JUDGED_BY_REPLAY, search_space
from warmup_tasks.tuning.stopping import Plateau
from warmup_tasks.tuning.study import Judge, Judgement, StudyResult, close_family, open_study, run_study
from warmup_tasks.tuning.traffic import TrafficClass, busiest, class_accesses, every_nth, traffic_classes

logger = logging.getLogger(__name__)

Summary = dict[str, Any]
MakeJudge = Callable[[TriggerJudge], Judge]

HELD_OUT_SHARE = 0.3
"""Of the window, at its newest end: values are accepted on it and never tuned on it."""
STRETCH_S = 3600.0
"""At most so much of either part is played: the hour with most requests."""
LEAST_PER_LIFE = 150
"""Requests between two restarts; with fewer nothing can be said of a P95."""
PLACEMENTS = 2
WEEK = timedelta(days=6, hours=12)
"""A weekly parameter is due when it was tuned longer ago than this: nights begin at slightly different times."""


class Verdict(StrEnum):
    """What became of a class's values."""

    TUNED = "tuned values published"
    KEPT = "last night's values stay: nothing did better on the newest traffic"
    NOT_FEASIBLE = "last night's values stay: no trial kept the constraints"
    ALL_PRUNED = "last night's values stay: all trials were pruned"
    NO_TIME = "last night's values stay: no time was left"
    TOO_LITTLE = "last night's values stay: too little traffic to judge settings on"


@dataclass(frozen=True, slots=True)
class Budget:
    """How much tuning may cost.

    Attributes:
        time_s: for all classes together, shared by their requests.
        trials: for each class.
        clock: seconds, never falling.
    """

    time_s: float
    clock: Callable[[], float]
    trials: int = 60


def tune(
    lake: Lake,
    run: Run,
    fleet: FleetFile,
    states: Sequence[ReplicaState],
    budget: Budget,
    *,
    journal: str | Path | None = None,
    slo_ms: float = 1000.0,
    judge_of: MakeJudge = lambda judge: judge,
) -> Summary:
    """Tune every traffic class that has enough requests before ``as_of``, and publish what did better.

    Args:
        lake: holds ``requests/<day>`` and earlier nights' ``tuning/<class>``, which are written.
        run: as_of, lookback, model filter, seed.
        fleet: names.
        states: the survey; capacity and speed of the replicas.
        budget: of time and trials.
        journal: file of all studies' trials; None: beside a local lake, else memory.
        slo_ms: of the time to first token; an evaluation constant.
        judge_of: wraps the judge, for tests.

    Returns:
        ``classes``: class → verdict, values, figures of the study and of the acceptance; ``journal``.
    """
    since = run.as_of - timedelta(seconds=run.policy.lookback_s)
    served = {state.model for state in states}
    classes = [
        one
        for one in traffic_classes(lake, fleet, since, run.as_of)
        if one.model in served and (not run.request.models or one.model in run.request.models)
    ]
    path = journal if journal is not None else _beside(lake)
    begun, left = budget.clock(), sum(one.requests for one in classes)
    summary: Summary = {"journal": str(path) if path is not None else None, "classes": {}}
    for traffic in classes:
        time_s = (budget.time_s - (budget.clock() - begun)) * traffic.requests / max(1, left)
        left -= traffic.requests
        own = [state for state in states if state.model == traffic.model]
        night = _ClassNight(
            lake, run, traffic, own, slo_ms, sum(c.requests for c in classes if c.model == traffic.model)
        )
        summary["classes"][traffic.name] = night.tune(path, budget, time_s, judge_of)
        logger.info("tuning %s: %s", traffic.name, summary["classes"][traffic.name]["verdict"])
    return summary


class _ClassNight:
    """One class's night: its log, its judges, its study, its verdict."""

    def __init__(
        self,
        lake: Lake,
        run: Run,
        traffic: TrafficClass,
        states: Sequence[ReplicaState],
        slo_ms: float,
        requests_of_model: int,
    ) -> None:
        self._lake, self._run, self._traffic, self._states = lake, run, traffic, states
        self._last = published.tuned_values(lake, traffic.model, traffic.adapter, traffic.request_type, run.as_of)
        self._base = GoldenParameters()
        self._slo_ms, self._share = slo_ms, traffic.requests / max(1, requests_of_model)

    def tune(self, journal: str | Path | None, budget: Budget, time_s: float, judge_of: MakeJudge) -> Summary:
        """Return the class's part of the summary; publishes when values are accepted."""
        if time_s <= 0:
            return self._kept(Verdict.NO_TIME)
        accesses = self._accesses()
        try:
            judge, later = (self._judge(accesses, part) for part in ("earlier", "later"))
        except ConfigurationError:
            return self._kept(Verdict.TOO_LITTLE)
        space, held = search_space(self._due()), self._held()
        stale = close_family(journal, f"{self._traffic.name}@") if journal is not None else 0
        judged = judge_of(judge)
        found = run_study(
            self._study(space, journal),
            space,
            lambda params: judged({**held, **params}),
            trials=budget.trials,
            clock=budget.clock,
            time_budget_s=time_s,
            first=[{name: values[name] for name in space} for values in self._first()],
            plateau=Plateau(),
        )
        found = replace(found, stale_closed=found.stale_closed + stale)
        if found.best is None:
            return self._kept(_why_none(found), found)
        values = {**held, **found.best.params}
        tuned, last = later(values), later(held)
        if not _is_accepted(tuned, last if self._last is not None else None, later.base_value):
            return self._kept(Verdict.KEPT, found, later=dict(tuned.facts))
        suits = suits_plan(later.evaluator, later.parameters(values), self._base)
        meta = {
            "as_of": self._run.as_of.isoformat(),
            "model": self._traffic.model,
            "adapter": self._traffic.adapter,
            "request_type": self._traffic.request_type,
            "requests": self._traffic.requests,
            "suits_plan": suits,
            "tuned_at": {**self._tuned_at(), **dict.fromkeys(space, self._run.as_of.isoformat())},
            "later_value": tuned.value,
            "later_value_last": last.value,
            "later_value_default": later.base_value,
        }
        told = sensitivity(found.trials, space, self._run.request.seed)
        ref = published.publish(self._lake, self._traffic.name, values, found.trials, told, meta)
        return {
            **self._figures(Verdict.TUNED, found),
            "ref": ref,
            "values": values,
            "suits_plan": suits,
            "sensitivity": dict(told.effects),
            "later": dict(tuned.facts),
            "later_fixed": dict(later.judge(later.fixed).facts),
        }

    def _accesses(self) -> Accesses | None:
        since = self._run.as_of - timedelta(seconds=self._run.policy.lookback_s)
        block = self._states[0].block_size
        found = class_accesses(self._lake, self._traffic, since, self._run.as_of, block)
        return None if found is None else every_nth(found, len(self._states))

    def _judge(self, accesses: Accesses | None, part: str) -> TriggerJudge:
        """Return the judge on the busiest hour of the earlier or the later part of the window."""
        if accesses is None or len(accesses) < LEAST_REQUESTS:
            raise ConfigurationError("tuning: too few requests")
        first, last = float(accesses.times_s[0]), float(accesses.times_s[-1])
        cut = last - HELD_OUT_SHARE * (last - first)
        since, until = (first, cut) if part == "earlier" else (cut, last)
        begin, end = busiest(accesses.times_s, since, until, STRETCH_S)
        rate = len(accesses.between(begin, end)) / max(1.0, end - begin)
        usual = Disturbances()
        life_s = min(max(usual.life_s, LEAST_PER_LIFE / max(rate, 1e-9)), (end - begin) / 2)
        disturbances = Disturbances(life_s=life_s, surge_every_s=max(usual.surge_every_s, life_s))
        seed = 10 * self._run.request.seed + (0 if part == "earlier" else 5)
        scenarios = [Scenario.of(accesses, begin, end, seed + place, disturbances) for place in range(PLACEMENTS)]
        return TriggerJudge(Evaluator(scenarios, self._service(accesses.block_tokens)), self._base)

    def _service(self, block_tokens: int) -> Service:
        capacity = min(state.capacity_tokens for state in self._states) * self._share
        latency = LatencyModel(
            fmean(state.base_ms for state in self._states),
            fmean(state.prefill_ms_per_token for state in self._states),
        )
        return Service(int(capacity // block_tokens), latency, self._slo_ms)

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

    def _study(self, space: dict[str, Any], journal: str | Path | None) -> Any:
        from warmup_tasks.tuning.sampler import GaussianProcessSampler

        name = f"{self._traffic.name}@{self._run.as_of:%Y%m%dT%H%M%SZ}"
        return open_study(name, GaussianProcessSampler(self._run.request.seed, space), journal)

    def _first(self) -> list[dict[str, Any]]:
        """Return what is tried before any proposal: last night's values, then the defaults."""
        return [self._held(), self._base.model_dump(mode="json")]

    def _held(self) -> dict[str, Any]:
        """Return last night's values of what the replay judges, or the defaults."""
        values = self._base.model_dump(mode="json")
        values.update(self._last.values if self._last is not None else {})
        return {name: values[name] for name in JUDGED_BY_REPLAY}

    def _tuned_at(self) -> dict[str, str]:
        return self._last.tuned_at if self._last is not None else {}

    def _kept(self, verdict: Verdict, found: StudyResult | None = None, **facts: Any) -> Summary:
        ref = self._last.ref if self._last is not None else None
        return {**self._figures(verdict, found), "ref": ref, "values": self._held(), **facts}

    def _figures(self, verdict: Verdict, found: StudyResult | None) -> Summary:
        figures: Summary = {"verdict": str(verdict), "requests": self._traffic.requests}
        if found is not None:
            figures |= {"trials": found.states, "stale_closed": found.stale_closed, "stop": str(found.stop)}
        return figures


def _is_accepted(tuned: Judgement, last: Judgement | None, default_value: float) -> bool:
    """Say whether values that kept the constraints on newer traffic, too, beat the defaults and last night's there."""
    if not _keeps_all(tuned) or tuned.value >= default_value:
        return False
    return last is None or not _keeps_all(last) or tuned.value < last.value


def _keeps_all(judgement: Judgement) -> bool:
    return all(value <= 0 for value in judgement.constraints.values())


def _why_none(found: StudyResult) -> Verdict:
    if not found.trials:
        return Verdict.NO_TIME
    return Verdict.ALL_PRUNED if all(trial.value is None for trial in found.trials) else Verdict.NOT_FEASIBLE


def _beside(lake: Lake) -> Path | None:
    """Return the journal beside a local lake; object storage takes no journal."""
    return Path(lake.uri) / "journals" / "tuning.journal" if "://" not in lake.uri else None
