"""How long a prompt takes: a straight line in its uncached tokens, fitted to the user's log or taken from the survey.

Time to first token = base + per token × uncached tokens + waiting; the waiting is the simulation's business.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import ReplicaState
from warmup_tasks.replay.accesses import Floats

LEAST_ROWS = 20


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """What one replica needs for a request.

    Attributes:
        base_ms: before the first token, whatever the prompt.
        ms_per_token: for each token that the cache does not hold.
        concurrency: requests that a replica computes side by side; further ones wait in order of arrival.
        rows: log rows that the line was fitted to; 0: not fitted.
        median_error_ms: median distance of these rows from the line.
    """

    base_ms: float = 20.0
    ms_per_token: float = 0.1
    concurrency: int = 4
    rows: int = 0
    median_error_ms: float | None = None

    def prefill_ms(self, uncached_tokens: float) -> float:
        """Return the time to first token of a request that does not wait."""
        return self.base_ms + self.ms_per_token * uncached_tokens

    @classmethod
    def of_replica(cls, state: ReplicaState, concurrency: int = 4) -> Self:
        """Return the line that the survey measured on a replica."""
        return cls(state.base_ms, state.prefill_ms_per_token, concurrency)

    @classmethod
    def fitted(cls, prompt_tokens: Floats, cached_tokens: Floats, ttft_ms: Floats, concurrency: int = 4) -> Self:
        """Return the line through logged requests; rows with a NaN in any column are left out.

        Robust least squares (Cauchy's loss at the rows' own spread) with neither figure below 0: waiting shows as rows
        far above the line and must not bend it, be they two in five.

        Raises:
            ConfigurationError: fewer than 20 usable rows, or all with the same number of uncached tokens.
        """
        from scipy.optimize import least_squares

        uncached, ttft = prompt_tokens - cached_tokens, ttft_ms
        usable = np.isfinite(uncached) & np.isfinite(ttft) & (uncached >= 0) & (ttft > 0)
        uncached, ttft = uncached[usable].astype(np.float64), ttft[usable].astype(np.float64)
        if len(ttft) < LEAST_ROWS or np.ptp(uncached) == 0:
            raise ConfigurationError(
                f"latency: {len(ttft)} log rows with prompt tokens, cached tokens and ttft_ms, or all of one length; "
                f"{LEAST_ROWS} are needed: take the line that the survey measured on a replica"
            )
        design = np.column_stack([np.ones_like(uncached), uncached])
        start = np.maximum(np.linalg.lstsq(design, ttft, rcond=None)[0], 0.0)
        for _ in range(5):  # the spread is known only once the line is
            spread = max(1e-3, 1.4826 * float(np.median(np.abs(ttft - design @ start))))
            found = least_squares(
                lambda line: design @ line - ttft,
                start,
                bounds=(0, np.inf),
                loss="cauchy",
                f_scale=spread,
                x_scale=[1.0, 1e-3],
            )
            start = found.x
        errors = np.abs(ttft - design @ start)
        return cls(float(start[0]), float(start[1]), concurrency, len(ttft), float(np.median(errors)))
