"""Which blocks a passive warm-up loads: by what was asked in the window before, under the golden parameters.

A choice sees only requests before its moment and consists of whole prefixes, hottest first: unlike at night, traffic
does not wait until all is loaded. The nightly plan chooses elsewhere, with more knowledge and more time.
"""

import numpy as np

from warmup_tasks.parameters import GoldenParameters, PrefetchStrategy
from warmup_tasks.replay.accesses import Accesses, Ids

LEAST_USES = 2
"""A block asked for once in the window is no candidate."""

_JUDGED_SHARE = 0.25
"""``adaptive`` compares both forecasts on this newest share of the window."""


class Chooser:
    """Chooses among the blocks of one log; keeps what does not depend on the moment."""

    def __init__(self, accesses: Accesses) -> None:
        from warmup_tasks.tuning import compiled

        self._compiled = compiled
        self._accesses = accesses
        self._ids = np.require(accesses.ids, np.int32, ["C", "W"])
        self._offsets = np.require(accesses.offsets, np.int64, ["C", "W"])
        self._times = np.require(accesses.times_s, np.float64, ["C", "W"])
        self._parents = accesses.parents()
        self._weights = np.zeros(accesses.blocks, np.float64)
        self._counts = np.zeros(accesses.blocks, np.int64)
        self._places = np.full(accesses.blocks, -1, np.int64)

    def choose(self, now_s: float, capacity_blocks: int, parameters: GoldenParameters) -> Ids:
        """Return the blocks to load at a moment.

        Candidates were asked for at least twice in ``warmup_window_s``, lie below at most ``prefetch_depth`` branches,
        and belong to one of the ``top_k`` heaviest runs of blocks that the same requests share. ``budget_share`` of the
        capacity bounds their number. Weight is the count (static), or the count decayed with ``heat_tau_fast_s``
        (dynamic); adaptive takes whichever would have foretold the newest quarter of the window better.
        """
        since = now_s - parameters.warmup_window_s
        tau_s = self._tau(since, now_s, parameters)
        touched = self._weigh(since, now_s, tau_s)
        chosen: Ids = self._compiled.chosen(
            touched,
            self._weights,
            self._counts,
            self._parents,
            self._places,
            LEAST_USES,
            parameters.prefetch_depth,
            parameters.top_k,
            int(parameters.budget_share * capacity_blocks),
        )
        self._forget(touched)
        return chosen

    def _tau(self, since_s: float, now_s: float, parameters: GoldenParameters) -> float:
        fast = float(parameters.heat_tau_fast_s)
        if parameters.prefetch_strategy is PrefetchStrategy.STATIC:
            return np.inf
        if parameters.prefetch_strategy is PrefetchStrategy.DYNAMIC:
            return fast
        cut = now_s - _JUDGED_SHARE * (now_s - since_s)
        errors = {tau: self._error(since_s, cut, now_s, tau) for tau in (np.inf, fast)}
        return fast if errors[fast] < errors[np.inf] else np.inf

    def _error(self, since_s: float, cut_s: float, now_s: float, tau_s: float) -> float:
        """Return by how many blocks a forecast made at ``cut_s`` for the time up to ``now_s`` is wrong."""
        touched = self._weigh(since_s, cut_s, tau_s)
        span_s = cut_s - since_s if np.isinf(tau_s) else tau_s * (1 - np.exp(-(cut_s - since_s) / tau_s))
        forecast = self._weights[touched] * ((now_s - cut_s) / span_s)
        self._forget(touched)
        asked = self._weigh(cut_s, now_s, np.inf)
        missed = float(self._weights[asked].sum())  # asked without forecast counts whole, until set right below
        both = self._weights[touched]
        error = missed - float(both.sum()) + float(np.abs(forecast - both).sum())
        self._forget(asked)
        return error

    def _weigh(self, since_s: float, until_s: float, tau_s: float) -> Ids:
        first, stop = np.searchsorted(self._times, [since_s, until_s])
        touched: Ids = self._compiled.weigh(
            self._ids, self._offsets, self._times, first, stop, until_s, tau_s, self._weights, self._counts
        )
        return touched

    def _forget(self, touched: Ids) -> None:
        self._weights[touched] = 0.0
        self._counts[touched] = 0
