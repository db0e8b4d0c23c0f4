"""Whether values that were tuned for passive triggers also suit the nightly plan, which some of them rule too.

A setting suits when a cache warmed with its choice hits at least as much, in the first minutes after a restart, as with
the defaults.
"""

import numpy as np

from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.replay.simulate import simulate
from warmup_tasks.tuning.choice import Chooser
from warmup_tasks.tuning.evaluation import Evaluator

FIRST_MINUTES_S = 300.0


def suits_plan(evaluator: Evaluator, tuned: GoldenParameters, default: GoldenParameters) -> bool:
    """Say whether the tuned values warm a restarted replica at least as well as the defaults."""
    return _hits(evaluator, tuned) >= _hits(evaluator, default)


def _hits(evaluator: Evaluator, parameters: GoldenParameters) -> int:
    """Return leading hits in the first 5 minutes after every restart, the cache being warmed before it."""
    hits = 0
    capacity = evaluator.service.capacity_blocks
    for scenario in evaluator.scenarios:
        chooser = Chooser(scenario.accesses)
        for begin_s, end_s in scenario.lives():
            warm = np.ascontiguousarray(chooser.choose(begin_s, capacity, parameters)[::-1])
            life = scenario.accesses.between(begin_s, min(end_s, begin_s + FIRST_MINUTES_S))
            hits += simulate(life, capacity, warm=warm, latency=evaluator.service.latency).hit_blocks
    return hits
