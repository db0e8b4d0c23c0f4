"""Prefix-run hits of an LRU cache: at one capacity by direct replay, at every capacity in one pass.

A request hits with its leading blocks up to the first that is not resident when it arrives; then all its blocks are
touched, and those that are missing inserted. What a request touches first grows old first:

- ``LEADING_FIRST``: in prompt order, the order in which a simulator reads a trace;
- ``TRAILING_FIRST``: from the end of the prompt, as engines free a request's blocks, so that parents outlive leaves.

All capacities in one pass: an LRU cache of c blocks holds the c most recently touched blocks, whatever c is, so a block
is resident exactly when its stack distance (distinct blocks touched since its last touch, itself included) is at most
c. A leading block hits when it and all before it are resident: when the *largest* distance so far is at most c. Only
the state at arrival counts, so the order of touches within a request changes later distances, not this argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from warmup_tasks.replay.accesses import Accesses, Ids, Ints


class TouchOrder(StrEnum):
    """In which order a request touches its blocks."""

    LEADING_FIRST = "leading_first"
    TRAILING_FIRST = "trailing_first"


@dataclass(frozen=True, slots=True, eq=False)
class LruReplay:
    """What happened: hits of each request, shape (requests,), and blocks asked for, inserted and evicted."""

    hits: Ids
    asked_blocks: int
    inserted_blocks: int
    evicted_blocks: int

    @property
    def hit_ratio(self) -> float:
        """Hits over blocks asked for; 0 for an empty log."""
        return int(self.hits.sum()) / self.asked_blocks if self.asked_blocks else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class HitCurve:
    """Hits at every capacity.

    Attributes:
        hits: hits at capacity c stand at index c, shape (distinct blocks + 1,); the last one is the endless cache's.
        asked_blocks: blocks asked for.
    """

    hits: Ints
    asked_blocks: int

    def hit_ratio(self, capacity_blocks: int | None = None) -> float:
        """Return the hit ratio at a capacity; None: an endless cache."""
        if not self.asked_blocks:
            return 0.0
        last = len(self.hits) - 1
        return (
            int(self.hits[last if capacity_blocks is None else min(max(0, capacity_blocks), last)]) / self.asked_blocks
        )

    def capacity_for(self, share: float) -> int:
        """Return the least capacity, in blocks, with at least ``share`` of what an endless cache hits."""
        return int(np.searchsorted(self.hits, share * self.hits[-1]))


def replay_lru(
    accesses: Accesses,
    capacity_blocks: int | None,
    *,
    touch_order: TouchOrder = TouchOrder.LEADING_FIRST,
    counts_runs: bool = True,
) -> LruReplay:
    """Return an LRU cache's hits over a log, from an empty cache on.

    Args:
        accesses: the log.
        capacity_blocks: blocks that fit; None: all.
        touch_order: see above.
        counts_runs: False counts every resident block, as a cache without prefixes does, at its own touch.
    """
    from warmup_tasks.replay.compiled import lru

    capacity = accesses.blocks if capacity_blocks is None else capacity_blocks
    ids, touches, offsets = _arrays(accesses, touch_order)
    hits, inserted, evicted = lru.replay_lru(ids, touches, offsets, accesses.blocks, capacity, counts_runs)
    return LruReplay(hits, len(ids), inserted, evicted)


def hit_curve(
    accesses: Accesses, *, touch_order: TouchOrder = TouchOrder.LEADING_FIRST, counts_runs: bool = True
) -> HitCurve:
    """Return the hits at every capacity at once, equal to :func:`replay_lru` at each; O(n log n)."""
    from warmup_tasks.replay.compiled.distances import needed_capacities

    ids, touches, offsets = _arrays(accesses, touch_order)
    needed = needed_capacities(ids, touches, offsets, accesses.blocks, counts_runs)
    return HitCurve(np.cumsum(needed), len(ids))


def hit_ratios(
    accesses: Accesses,
    capacities: Sequence[int],
    *,
    touch_order: TouchOrder = TouchOrder.LEADING_FIRST,
) -> dict[int, float]:
    """Return capacity in blocks → prefix-run hit ratio."""
    return {
        capacity: replay_lru(accesses, capacity, touch_order=touch_order).hit_ratio
        for capacity in dict.fromkeys(capacities)
    }


def _arrays(accesses: Accesses, touch_order: TouchOrder) -> tuple[Ids, Ids, Ints]:
    from warmup_tasks.replay.compiled.lru import trailing_first

    ids = np.require(accesses.ids, np.int32, ["C", "W"])
    offsets = np.require(accesses.offsets, np.int64, ["C", "W"])
    touches = ids if touch_order is TouchOrder.LEADING_FIRST else trailing_first(ids, offsets)
    return ids, touches, offsets
