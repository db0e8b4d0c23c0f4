"""Live figures of a replica, and when they call for a warm-up: the one definition of a passive trigger's signals.

The agent measures the figures on a living engine, the tuner in simulated time; both ask :class:`Crossing`. What a
firing loads, costs and saves is said elsewhere. No I/O, nothing heavy.
"""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

ROLLING_S = 30.0
"""Window of the rolling figures."""
BEFORE_S = 300.0
"""What lies this long before the rolling window is what the figures are compared with."""


class Signal(StrEnum):
    """What may cross its threshold."""

    TTFT = "ttft"
    QPS = "qps"
    MISSES = "misses"


@dataclass(frozen=True, slots=True)
class Rolling:
    """One replica's figures at one moment; None: nothing to measure.

    Attributes:
        time_s: the moment, on the log's clock, or on the wall clock.
        replica: number of the replica.
        ttft_p95_ms: of first tokens in the last 30 s.
        qps: requests a second in the last 30 s; ``qps_before`` in the 5 minutes before these. Where the log is younger,
            over the time there is.
        miss_ratio: part of what was asked for but not hit in the last 30 s, in blocks or tokens; ``miss_ratio_before``
            in the 5 minutes before these.
        is_warming: a warm-up is under way, and a firing would be ignored.
    """

    time_s: float
    replica: int
    ttft_p95_ms: float | None
    qps: float
    qps_before: float | None
    miss_ratio: float | None
    miss_ratio_before: float | None
    is_warming: bool


class Conditions(BaseModel):
    """Further signals, or-ed with the P95 threshold (spec 2.3); None leaves one out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    qps_ratio: float | None = Field(None, gt=1, description="Requests a second over those of the 5 minutes before.")
    least_qps: float = Field(0.0, ge=0, description="Below so many requests a second no ratio counts.")
    miss_rise: float | None = Field(None, gt=0, lt=1, description="Miss ratio above that of the 5 minutes before.")


class Crossing:
    """Tells when the signals of one replica, or-ed, cross from below.

    What was seen before a restart stays known: a figure that is missing afterwards changes nothing, so a signal that is
    always above its threshold fires once, not after each restart.

    Attributes:
        threshold_ms: of the P95; it may change on the way.
    """

    def __init__(self, threshold_ms: float, conditions: Conditions) -> None:
        self.threshold_ms, self._conditions = threshold_ms, conditions
        self._is_above = False
        self._calm_qps: float | None = None
        self._calm_miss: float | None = None

    def __call__(self, figures: Rolling) -> tuple[Signal, ...]:
        """Return the signals above their thresholds where this is a crossing that may fire, else nothing."""
        self._calm_qps = figures.qps_before if figures.qps_before is not None else self._calm_qps
        self._calm_miss = figures.miss_ratio_before if figures.miss_ratio_before is not None else self._calm_miss
        told = {signal: is_above for signal, is_above in self._signals(figures).items() if is_above is not None}
        if not told:
            return ()
        was_above, self._is_above = self._is_above, any(told.values())
        if not self._is_above or was_above or figures.is_warming:
            return ()
        return tuple(signal for signal, is_above in told.items() if is_above)

    def _signals(self, figures: Rolling) -> dict[Signal, bool | None]:
        p95, miss, limits = figures.ttft_p95_ms, figures.miss_ratio, self._conditions
        least_qps = None if limits.qps_ratio is None or not self._calm_qps else limits.qps_ratio * self._calm_qps
        is_busy = None if least_qps is None else figures.qps > max(limits.least_qps, least_qps)
        is_missing = (
            None
            if limits.miss_rise is None or miss is None or self._calm_miss is None
            else miss - self._calm_miss > limits.miss_rise
        )
        is_slow = None if p95 is None else p95 > self.threshold_ms
        return {Signal.TTFT: is_slow, Signal.QPS: is_busy, Signal.MISSES: is_missing}
