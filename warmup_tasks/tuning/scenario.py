"""What a setting is tried on: a stretch of a log, with restarts and surges placed by seed.

Logs seldom say when a replica restarted, and a quiet day shows no surge; so both are placed. A surge invents no
request: for a while the log's clock runs faster. Nothing here is simulated yet.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import numpy as np

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.replay.accesses import Accesses, Floats

LEAST_REQUESTS = 200


@dataclass(frozen=True, slots=True)
class Disturbances:
    """How often something happens; evaluation constants.

    Attributes:
        life_s: mean time between a replica's restarts; lives are drawn uniformly from half to one and a half of it.
        surge_every_s: mean time between the beginnings of surges, drawn likewise.
        surge_s: how long a surge lasts on the log's own clock.
        surge_speed: how much faster the clock runs meanwhile.
    """

    life_s: float = 480.0
    surge_every_s: float = 600.0
    surge_s: float = 180.0
    surge_speed: float = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """A log with disturbances.

    Attributes:
        accesses: the whole log; what lies before ``begin_s`` is history that a warm-up may draw on, and is not scored.
        begin_s: scored from here on.
        end_s: scored up to here.
        restarts_s: when the replica restarts, within (begin_s, end_s). It also begins with an empty cache.
    """

    accesses: Accesses
    begin_s: float
    end_s: float
    restarts_s: tuple[float, ...]

    @classmethod
    def of(cls, accesses: Accesses, begin_s: float, end_s: float, seed: int, disturbances: Disturbances) -> Self:
        """Return the stretch [begin_s, end_s) of a log with seeded disturbances.

        Args:
            accesses: the log, whole.
            begin_s: on the log's own clock.
            end_s: on the log's own clock.
            seed: same seed, same places.
            disturbances: how often.

        Raises:
            ConfigurationError: fewer than 200 requests lie in the stretch.
        """
        inside = len(accesses.between(begin_s, end_s))
        if inside < LEAST_REQUESTS:
            raise ConfigurationError(f"tuning: {inside} requests to try settings on; {LEAST_REQUESTS} are needed")
        random = np.random.default_rng([seed, 1])
        starts = _spread(random, begin_s, end_s, disturbances.surge_every_s)
        clock = _Clock(starts, disturbances.surge_s, disturbances.surge_speed)
        begin, end = (float(moment) for moment in clock.played(np.asarray([begin_s, end_s])))
        restarts = _spread(np.random.default_rng([seed, 2]), begin, end, disturbances.life_s)
        played = replace(accesses, times_s=clock.played(accesses.times_s))
        return cls(played, begin, end, tuple(float(moment) for moment in restarts))

    def lives(self) -> list[tuple[float, float]]:
        """Return [from, to) of each life of the replica."""
        cuts = [self.begin_s, *self.restarts_s, self.end_s]
        return list(pairwise(cuts))


@dataclass(frozen=True, slots=True, eq=False)
class _Clock:
    """Maps the log's time to played time; surges at ``starts`` last ``length`` and run ``speed`` times as fast."""

    starts: Floats
    length: float
    speed: float

    def played(self, times_s: Floats) -> Floats:
        gained = np.zeros(len(times_s))
        for start in self.starts:
            gained += np.clip(times_s - start, 0.0, self.length) * (1 - 1 / self.speed)
        return times_s - gained


def _spread(random: np.random.Generator, begin_s: float, end_s: float, mean_s: float) -> Floats:
    gaps: Floats = random.uniform(0.5, 1.5, max(1, int(3 * (end_s - begin_s) / mean_s) + 3)) * mean_s
    moments = begin_s + np.cumsum(gaps)
    return np.asarray(moments[moments < end_s], np.float64)
