"""What a setting is worth: a scenario played with its trigger, against the same scenario with the fixed threshold.

One evaluator for every sampler and every comparison. Time is simulated; the same arguments give the same figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.replay.accesses import Floats
from warmup_tasks.replay.latency import LatencyModel
from warmup_tasks.replay.simulate import WarmingPace, simulate
from warmup_tasks.replay.triggers import Firing, surges
from warmup_tasks.signals import Conditions, Rolling
from warmup_tasks.tuning.choice import Chooser
from warmup_tasks.tuning.scenario import Scenario
from warmup_tasks.tuning.triggers import Account, PassiveTrigger, account

TICK_S = 5.0
"""How often the live figures are looked at: the window of the heat map (spec 2.1)."""
COST_WEIGHT = 0.2
"""Weight of tokens spent over tokens saved in the objective (spec 2.3)."""
MOST_COST = 10.0
"""Spent over saved counts at most so much, so that a setting that saves nothing still has a value."""


@dataclass(frozen=True, slots=True)
class Service:
    """The replica that a log is played against.

    Attributes:
        capacity_blocks: blocks that fit into its cache.
        latency: how long a prompt takes.
        slo_ms: of the time to first token; a P95 above it for 30 s is a surge.
    """

    capacity_blocks: int
    latency: LatencyModel
    slo_ms: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one setting did on the scenarios, taken together.

    Attributes:
        p50_ms: median time to first token of all requests.
        p95_ms: their P95.
        mean_ms: their mean.
        account: of the firings.
        computed_tokens: prefill of the requests.
    """

    p50_ms: float
    p95_ms: float
    mean_ms: float
    account: Account
    computed_tokens: int

    @property
    def cost(self) -> float:
        """Tokens spent over tokens saved, at most 10; 0 when nothing was spent."""
        spent, saved = self.account.spent_tokens, self.account.saved_tokens
        return min(MOST_COST, spent / saved if saved else MOST_COST) if spent else 0.0

    def objective(self, fixed: "Evaluation") -> float:
        """Return P95/P95_fixed + 0.2 · spent/saved (spec 2.3); smaller is better."""
        return self.p95_ms / fixed.p95_ms + COST_WEIGHT * self.cost


class Evaluator:
    """Plays settings against scenarios; the run without any warm-up, which defines the surges, is played once."""

    def __init__(self, scenarios: Sequence[Scenario], service: Service) -> None:
        self.scenarios, self.service = scenarios, service
        self._choosers = [Chooser(scenario.accesses) for scenario in scenarios]
        self._surges: list[list[tuple[float, float]]] = []
        plays = [self._play(place, None, Conditions()) for place in range(len(scenarios))]
        self._surges = [[surge for life in play.ticks for surge in surges(life, service.slo_ms)] for play in plays]
        self.cold = self._evaluation(plays)

    def evaluate(self, parameters: GoldenParameters, conditions: Conditions | None = None) -> Evaluation:
        """Return what happens under these parameters."""
        places = range(len(self.scenarios))
        return self._evaluation([self._play(place, parameters, conditions or Conditions()) for place in places])

    def _play(self, place: int, parameters: GoldenParameters | None, conditions: Conditions) -> "_Play":
        scenario, service, chooser = self.scenarios[place], self.service, self._choosers[place]
        trigger, pace = None, None
        if parameters is not None:
            golden = parameters
            pace = WarmingPace(duty_share=float(golden.concurrency))
            trigger = PassiveTrigger(
                golden.trigger_threshold_ms,
                conditions,
                lambda now_s: chooser.choose(now_s, service.capacity_blocks, golden),
            )
        play = _Play([], [], [], 0)
        for begin_s, end_s in scenario.lives():
            life = simulate(
                scenario.accesses.between(begin_s, end_s),
                service.capacity_blocks,
                latency=service.latency,
                trigger=trigger or _never,
                pace=pace,
                tick_s=TICK_S,
            )
            play.ttft_ms.append(life.ttft_ms)
            play.firings.extend(life.firings)
            play.ticks.append(life.ticks)
            play.computed_tokens += life.computed_tokens
        return play

    def _evaluation(self, plays: Sequence["_Play"]) -> Evaluation:
        ttft_ms = np.concatenate([life for play in plays for life in play.ttft_ms])
        accounts = [
            account(play.firings, found, scenario.end_s)
            for play, found, scenario in zip(plays, self._surges, self.scenarios, strict=True)
        ]
        p50_ms, p95_ms = np.quantile(ttft_ms, [0.5, 0.95])
        return Evaluation(
            p50_ms=float(p50_ms),
            p95_ms=float(p95_ms),
            mean_ms=float(ttft_ms.mean()),
            account=_together(accounts),
            computed_tokens=sum(play.computed_tokens for play in plays),
        )


@dataclass(slots=True)
class _Play:
    ttft_ms: list[Floats]
    firings: list[Firing]
    ticks: list[tuple[Rolling, ...]]
    computed_tokens: int


def _never(figures: Rolling) -> None:
    return None


def _together(accounts: Sequence[Account]) -> Account:
    return Account(
        firings=sum(one.firings for one in accounts),
        false_firings=sum(one.false_firings for one in accounts),
        doubtful_firings=sum(one.doubtful_firings for one in accounts),
        spent_tokens=sum(one.spent_tokens for one in accounts),
        saved_tokens=sum(one.saved_tokens for one in accounts),
        surges=sum(one.surges for one in accounts),
        preceded_surges=sum(one.preceded_surges for one in accounts),
        latencies_s=tuple(latency for one in accounts for latency in one.latencies_s),
    )
