"""The simple rules that a choice has to beat: by count, by recency, the last LRU state restored (spec 4.2).

Each takes what was asked before the restart and a budget in blocks, and gives block numbers in the order of loading,
hottest last. Whatever predicts more than this lives in ``planning/`` and above.
"""

import numpy as np
import numpy.typing as npt

from warmup_tasks.replay.accesses import Accesses, Ids, Ints


def by_count(past: Accesses, budget_blocks: int) -> Ids:
    """Return the blocks asked for most often; among equals the more recent, then the one nearer to the prompt's start.

    A block is asked for at least as often as those behind it, so the choice consists of whole prefixes.
    """
    counts = np.bincount(past.ids, minlength=past.blocks)
    request, depth = _last_use(past)
    return _hottest(counts > 0, (depth, -request, -counts), budget_blocks)


def by_recency(past: Accesses, budget_blocks: int) -> Ids:
    """Return the blocks of the most recent requests, of the last one that fits in part its leading blocks."""
    request, depth = _last_use(past)
    return _hottest(request >= 0, (depth, -request), budget_blocks)


def last_lru_state(past: Accesses, budget_blocks: int) -> Ids:
    """Return what an LRU cache of the budget's size holds, in its own order: the most recently touched blocks.

    Requests touch their blocks in prompt order, so of the oldest request that is left the *trailing* blocks are left,
    which nobody can hit: restoring a state as it is restores them too.
    """
    last = np.full(past.blocks, -1, np.int64)
    last[past.ids] = np.arange(len(past.ids))
    return _hottest(last >= 0, (-last,), budget_blocks)


def _last_use(past: Accesses) -> tuple[Ints, Ints]:
    """Return the last request that asks for each block (-1: none), and the block's place in that prompt."""
    request, depth = np.full(past.blocks, -1, np.int64), np.zeros(past.blocks, np.int64)
    lengths = past.lengths()
    request[past.ids] = np.repeat(np.arange(len(past)), lengths)
    depth[past.ids] = np.arange(len(past.ids)) - np.repeat(past.offsets[:-1], lengths)
    return request, depth


def _hottest(is_known: npt.NDArray[np.bool_], keys: tuple[Ints, ...], budget_blocks: int) -> Ids:
    """Return the known blocks that stand first by the last key, then the one before it, and so on; hottest last."""
    order = np.lexsort(keys)
    hottest: Ids = order[is_known[order]][: max(0, budget_blocks)][::-1].astype(np.int32)
    return hottest
