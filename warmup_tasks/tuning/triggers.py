"""Passive triggers (spec 2.3): when the live figures fire a warm-up, and how well a run of them did.

When figures cross a threshold is said in ``signals.py``, for the agent as well. Which blocks a firing loads is the
business of ``choice.py``, what it then costs and saves is told by the simulation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from warmup_tasks.replay.accesses import Ids
from warmup_tasks.replay.triggers import SAVED_WITHIN_S, Firing
from warmup_tasks.signals import Conditions, Crossing, Rolling

RECALL_BEFORE_S = 300.0
"""A firing this long before a surge can still be said to have preceded it."""
DOUBT_BELOW = 1.5
"""A firing that saves less than so many times its cost may well be false on the next day's traffic."""
SURGE_LEAST_S = 30.0
"""P95 above the SLO for so long is a surge; a firing up to this moment precedes it."""


class PassiveTrigger:
    """Loads what is chosen at the moment of a crossing."""

    def __init__(self, threshold_ms: float, conditions: Conditions, choose: Callable[[float], Ids]) -> None:
        self._crossing, self._choose = Crossing(threshold_ms, conditions), choose

    def __call__(self, figures: Rolling) -> Sequence[int] | Ids | None:
        """Return the blocks to load, or None."""
        return self._choose(figures.time_s) if self._crossing(figures) else None


@dataclass(frozen=True, slots=True)
class Account:
    """How a run's firings did, by the definitions of spec 2.3.

    Attributes:
        firings: that loaded anything; a firing that finds everything resident costs nothing and counts nowhere.
        false_firings: of these, whose saved tokens stay below the spent ones.
        doubtful_firings: of these, whose saved tokens stay below 1.5 times the spent ones; false ones included.
        spent_tokens: by all firings.
        saved_tokens: by all firings.
        surges: stretches of at least 30 s with P95 above the SLO, when nothing is warmed.
        preceded_surges: of these, with a firing from 5 minutes before up to the moment that makes them a surge.
        latencies_s: warm-up latency of each firing that ended.
    """

    firings: int
    false_firings: int
    doubtful_firings: int
    spent_tokens: int
    saved_tokens: int
    surges: int
    preceded_surges: int
    latencies_s: tuple[float, ...]

    @property
    def false_share(self) -> float | None:
        """False firings over firings; None without any."""
        return self.false_firings / self.firings if self.firings else None

    @property
    def doubtful_share(self) -> float | None:
        """Doubtful firings over firings; None without any."""
        return self.doubtful_firings / self.firings if self.firings else None

    @property
    def recall(self) -> float | None:
        """Preceded surges over surges; None without any."""
        return self.preceded_surges / self.surges if self.surges else None


def account(firings: Sequence[Firing], surges: Sequence[tuple[float, float]], end_s: float) -> Account:
    """Return the account of a run's firings.

    Args:
        firings: of the run.
        surges: [begin, end] of those that came about without any warm-up, so that preventing one is no loss.
        end_s: when the log ends; what was fired less than 300 s before cannot be judged and is left out.
    """
    loaded = [one for one in firings if one.spent_tokens > 0 and one.fired_at_s <= end_s - SAVED_WITHIN_S]
    moments = [firing.fired_at_s for firing in firings]
    preceded = sum(
        any(begin - RECALL_BEFORE_S <= moment <= begin + SURGE_LEAST_S for moment in moments) for begin, _ in surges
    )
    return Account(
        firings=len(loaded),
        false_firings=sum(firing.is_false for firing in loaded),
        doubtful_firings=sum(firing.saved_tokens < DOUBT_BELOW * firing.spent_tokens for firing in loaded),
        spent_tokens=sum(firing.spent_tokens for firing in loaded),
        saved_tokens=sum(firing.saved_tokens for firing in loaded),
        surges=len(surges),
        preceded_surges=preceded,
        latencies_s=tuple(latency for firing in loaded if (latency := firing.latency_s) is not None),
    )
