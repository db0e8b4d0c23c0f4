"""A replica's live figures out of its metrics: counters and histograms of scrapes become rolling rates and quantiles.

Whose requests they are, the metrics do not say; who sends requests beside live traffic takes its own out here. Pure: no
clock, no network.
"""

from collections import deque

from warmup_tasks.engines.base import EngineMetrics
from warmup_tasks.signals import BEFORE_S, ROLLING_S, Rolling

Buckets = tuple[tuple[float, float], ...]
LEAST_FIRST_TOKENS = 5
"""Fewer first tokens in a window say nothing of a quantile."""


class LiveFigures:
    """The scrapes of one replica's process of the last six minutes.

    A new process begins anew: its counters stand at 0. A scrape stands for the moment at which it was made.
    """

    def __init__(self) -> None:
        self._scrapes: deque[tuple[float, EngineMetrics]] = deque()

    def add(self, scrape: EngineMetrics, moment_s: float) -> None:
        """Take a scrape in; one that is no later than the last tells nothing new."""
        if self._scrapes and _is_another(self._scrapes[-1][1], scrape):
            self._scrapes.clear()
        if self._scrapes and moment_s <= self._scrapes[-1][0]:
            return
        self._scrapes.append((moment_s, scrape))
        while len(self._scrapes) > 1 and self._scrapes[1][0] <= moment_s - ROLLING_S - BEFORE_S:
            self._scrapes.popleft()

    def rolling(self, *, is_warming: bool = False) -> Rolling | None:
        """Return the figures as of the newest scrape, ``is_warming`` handed on; None before there are two."""
        if len(self._scrapes) < 2:
            return None
        (first_s, first), (now_s, now) = self._scrapes[0], self._scrapes[-1]
        then_s, then = self._at(now_s - ROLLING_S)
        before_s = then_s - first_s
        return Rolling(
            time_s=now_s,
            replica=0,
            ttft_p95_ms=quantile_ms(minus(now.first_tokens, then.first_tokens), 0.95),
            qps=max(0.0, _arrived(now) - _arrived(then)) / (now_s - then_s),
            qps_before=max(0.0, _arrived(then) - _arrived(first)) / before_s if before_s else None,
            miss_ratio=_miss_ratio(then, now),
            miss_ratio_before=_miss_ratio(first, then) if before_s else None,
            is_warming=is_warming,
        )

    def _at(self, moment_s: float) -> tuple[float, EngineMetrics]:
        """Return the last scrape not after a moment, or the oldest there is."""
        found = self._scrapes[0]
        for entry in self._scrapes:
            if entry[0] > moment_s:
                break
            found = entry
        return found


def minus(now: Buckets, then: Buckets) -> Buckets:
    """Return the histogram of what came in between two histograms of one process."""
    before = dict(then)
    return tuple((bound, count - before.get(bound, 0.0)) for bound, count in now)


def quantile_ms(histogram: Buckets, share: float, *, least: int = LEAST_FIRST_TOKENS) -> float | None:
    """Return a quantile of a cumulative histogram in ms, interpolated within its bucket.

    Above the last finite bound it is that bound. None where fewer than ``least`` were counted.

    Args:
        histogram: (upper bound in s, count up to it), the last bound infinite.
        share: 0 to 1.
        least: how many it takes.
    """
    total = histogram[-1][1] if histogram else 0.0
    if total < least:
        return None
    wanted, lower, below = share * total, 0.0, 0.0
    for bound, count in histogram:
        if count >= wanted and count > below:
            upper = lower if bound == float("inf") else bound
            return 1000 * (lower + (upper - lower) * (wanted - below) / (count - below))
        lower, below = bound, count
    return None


def _is_another(before: EngineMetrics, now: EngineMetrics) -> bool:
    return now.process_start_s != before.process_start_s or now.prefix_queries_tokens < before.prefix_queries_tokens


def _arrived(scrape: EngineMetrics) -> float:
    """Requests since the process start: those that got their first token, and those that wait for it."""
    return (scrape.first_tokens[-1][1] if scrape.first_tokens else 0.0) + scrape.waiting


def _miss_ratio(then: EngineMetrics, now: EngineMetrics) -> float | None:
    asked = now.prefix_queries_tokens - then.prefix_queries_tokens
    return 1 - (now.prefix_hits_tokens - then.prefix_hits_tokens) / asked if asked > 0 else None
