"""When a study has seen enough: a plateau, the number of trials, or the time."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Stop(StrEnum):
    """Why a study ended."""

    TRIALS = "all trials were run"
    TIME = "its time was over"
    PLATEAU = "the best value no longer improved"


@dataclass(frozen=True, slots=True)
class Plateau:
    """Stops when the best value has not improved by ``least_gain`` within the last ``patience`` trials.

    Attributes:
        patience: trials; those before ``least_trials`` do not count.
        least_gain: share of the best value.
        least_trials: before so many a study never stops for this.
    """

    patience: int = 25
    least_gain: float = 0.005
    least_trials: int = 30

    def is_reached(self, values: Sequence[float | None]) -> bool:
        """Say whether to stop.

        Args:
            values: of the finished trials in order, smaller is better; None: broke a constraint or could not be judged.
        """
        if len(values) < max(self.least_trials, self.patience + 1):
            return False
        before = [value for value in values[: -self.patience] if value is not None]
        lately = [value for value in values[-self.patience :] if value is not None]
        if not before or not lately:
            return bool(before)
        return min(lately) > min(before) - self.least_gain * abs(min(before))
