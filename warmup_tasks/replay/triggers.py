"""Passive triggers (spec 2.3): what a trigger sees, what it answers, and what its firings cost and saved.

A trigger is any function from the rolling figures of one replica to the blocks that are to be loaded, or None. Here
figures come from simulated requests, and here lives the account; which trigger is good is decided elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from warmup_tasks.replay.accesses import Floats, Ids, Ints
from warmup_tasks.signals import BEFORE_S, ROLLING_S, Rolling

SAVED_WITHIN_S = 300.0
"""Tokens count as saved by a firing up to this long after it."""

Trigger = Callable[[Rolling], Sequence[int] | Ids | None]


@dataclass(frozen=True, slots=True)
class Firing:
    """One warm-up that a trigger started.

    Attributes:
        replica: where.
        fired_at_s: when.
        resident_at_s: when the last planned block was resident; None: not before the log ended.
        spent_tokens: prefill of the blocks that were not resident already.
        saved_tokens: prefill that hits on these blocks saved within 300 s; a block that was evicted meanwhile and came
            back with traffic counts no more.
    """

    replica: int
    fired_at_s: float
    resident_at_s: float | None
    spent_tokens: int
    saved_tokens: int

    @property
    def is_false(self) -> bool:
        """Whether it saved less than it spent."""
        return self.saved_tokens < self.spent_tokens

    @property
    def latency_s(self) -> float | None:
        """From firing to the last planned block resident."""
        return None if self.resident_at_s is None else self.resident_at_s - self.fired_at_s


def rolling(
    time_s: float,
    began_s: float,
    replica: int,
    arrivals_s: Floats,
    asked: Ints,
    hits: Ids,
    ttft_ms: Floats,
    on_replica: Ids,
    *,
    is_warming: bool,
) -> Rolling:
    """Return the figures of the requests that arrived up to ``time_s``; the arrays may reach further back.

    Args:
        time_s: the moment.
        began_s: when the log began.
        replica: whose figures.
        arrivals_s: shape (requests,), never falling.
        asked: blocks of each request.
        hits: leading hits of each request.
        ttft_ms: of each request; a first token after ``time_s`` is not seen yet.
        on_replica: which replica each request went to.
        is_warming: handed on.
    """
    own = on_replica == replica
    now = own & (arrivals_s > time_s - ROLLING_S)
    before = own & ~now & (arrivals_s > time_s - ROLLING_S - BEFORE_S)
    first_token_s = arrivals_s + ttft_ms / 1000
    told = np.sort(ttft_ms[own & (first_token_s > time_s - ROLLING_S) & (first_token_s <= time_s)])
    span_s = min(BEFORE_S, time_s - ROLLING_S - began_s)
    return Rolling(
        time_s=time_s,
        replica=replica,
        ttft_p95_ms=_sorted_quantile(told, 0.95) if len(told) else None,
        qps=int(now.sum()) / min(ROLLING_S, time_s - began_s),
        qps_before=int(before.sum()) / span_s if span_s > 0 else None,
        miss_ratio=_miss_ratio(asked[now], hits[now]),
        miss_ratio_before=_miss_ratio(asked[before], hits[before]),
        is_warming=is_warming,
    )


def surges(ticks: Sequence[Rolling], slo_ms: float, least_s: float = 30.0) -> list[tuple[float, float]]:
    """Return the stretches [begin, end], in s, in which a replica's P95 stays above ``slo_ms`` for ``least_s`` or more.

    A moment without any first token neither begins nor ends one.
    """
    found: list[tuple[float, float]] = []
    begun = end = None
    for tick in ticks:
        if tick.ttft_p95_ms is None:
            continue
        if tick.ttft_p95_ms > slo_ms:
            begun, end = (tick.time_s if begun is None else begun), tick.time_s
        else:
            found += [(begun, end)] if begun is not None and end is not None and end - begun >= least_s else []
            begun = end = None
    return found + ([(begun, end)] if begun is not None and end is not None and end - begun >= least_s else [])


def _miss_ratio(asked: Ints, hits: Ids) -> float | None:
    total = int(asked.sum())
    return 1 - int(hits.sum()) / total if total else None


def _sorted_quantile(values: Floats, share: float) -> float:
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return float(values[low] + (values[high] - values[low]) * (place - low))
