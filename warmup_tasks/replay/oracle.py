"""The best choice in hindsight: an exact knapsack on the prefix tree, and what it could have loaded at a restart.

Whoever chooses cannot do better than this with the same budget; how near a choice comes is its grade. Here stands no
prediction.
"""

import numpy as np
import numpy.typing as npt

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.replay.accesses import NO_BLOCK, Accesses, Floats, Ids, Ints
from warmup_tasks.replay.simulate import simulate

MOST_CELLS = 1 << 27
_SIZES_TRIED = 16


def best_closed_set(
    parents: Ids | Ints, gains: Floats, budget: int, weights: Ints | None = None
) -> npt.NDArray[np.bool_]:
    """Return which nodes of a forest to take: with each its parent, within the budget, for the largest sum of gains.

    Exact. With equal weights and gains that never rise on the way down and are not negative, the nodes of largest gain
    are closed by themselves, so sorting is enough: swapping any taken node for a larger one that was left gains. In
    any other case a dynamic programme over the forest in preorder, nodes × budget cells.

    Args:
        parents: of each node, -1 at the top; parents stand before children.
        gains: of each node, taken or not as a whole.
        budget: sum of weights that may be taken.
        weights: 0 or more; None: 1 each.

    Raises:
        ConfigurationError: a parent behind its child, or more than 2^27 cells (1 GB).
    """
    parents = np.asarray(parents, np.int64)
    if (parents >= np.arange(len(parents))).any():
        raise ConfigurationError("best_closed_set: parents must stand before their children")
    gains, budget = np.asarray(gains, np.float64), max(0, budget)
    above = np.where(parents == NO_BLOCK, np.inf, gains[parents]) if len(gains) else gains
    if weights is None and (gains >= 0).all() and (gains <= above).all():
        chosen = np.zeros(len(gains), np.bool_)
        chosen[np.argsort(-gains, kind="stable")[:budget]] = True
        return chosen
    from warmup_tasks.replay.compiled.knapsack import best_closed

    if (len(gains) + 1) * (budget + 1) > MOST_CELLS:
        raise ConfigurationError(
            f"best_closed_set: {len(gains)} nodes × budget {budget} exceed {MOST_CELLS} cells: join runs of blocks"
        )
    preorder, sizes = _preorder(parents)
    each = np.ones(len(gains), np.int64) if weights is None else np.asarray(weights, np.int64)
    chosen = np.empty(len(gains), np.bool_)
    chosen[preorder] = best_closed(sizes, each[preorder], gains[preorder], budget)
    return chosen


def oracle(
    accesses: Accesses, restart_at_s: float, window_s: float, budget_blocks: int, *, is_known_only: bool = True
) -> Ids:
    """Return the blocks whose loading at a restart gains most in the window, in a cache that holds all of it.

    Exact: while nothing is evicted, a block is resident from its first use on, and what is resident is always a set of
    whole prefixes. Loading a block therefore turns its first use in the window into a hit, and nothing else: every
    block of the window gains the same, and those used first are as good as any others and closed under prefixes.

    Args:
        accesses: the log.
        restart_at_s: when.
        window_s: what is scored.
        budget_blocks: how many may be loaded.
        is_known_only: only blocks that were asked for before the restart, as whoever chooses from a log can only do.

    Returns:
        Block numbers in the order of loading, those used first last.
    """
    return _by_first_use(accesses, restart_at_s, window_s, is_known_only)[: max(0, budget_blocks)][::-1].copy()


def oracle_in_small_cache(
    accesses: Accesses,
    restart_at_s: float,
    window_s: float,
    budget_blocks: int,
    capacity_blocks: int,
    *,
    is_known_only: bool = True,
) -> Ids:
    """Return the best choice found where traffic evicts what was loaded: *not* proved to be the best there is.

    Tries the blocks used first, in several numbers and loaded from either end, and keeps what hits most: what is used
    late is evicted before its use, and leaving it out makes room for the traffic's own blocks.
    """
    wanted = _by_first_use(accesses, restart_at_s, window_s, is_known_only)[: max(0, budget_blocks)]
    sizes = np.unique(np.linspace(0, len(wanted), _SIZES_TRIED + 1).astype(np.int64))
    tried = [order for size in sizes for order in (wanted[:size], wanted[:size][::-1])]
    return max(tried, key=lambda warm: _hits(accesses, capacity_blocks, warm, restart_at_s, window_s)).copy()


def _by_first_use(accesses: Accesses, restart_at_s: float, window_s: float, is_known_only: bool) -> Ids:
    window = accesses.between(restart_at_s, restart_at_s + window_s)
    blocks, first_use = np.unique(window.ids, return_index=True)
    if is_known_only:
        is_known = np.zeros(accesses.blocks, np.bool_)
        is_known[accesses.between(until_s=restart_at_s).ids] = True
        blocks, first_use = blocks[is_known[blocks]], first_use[is_known[blocks]]
    return blocks[np.argsort(first_use)]


def _hits(accesses: Accesses, capacity: int, warm: Ids, restart_at_s: float, window_s: float) -> int:
    return simulate(accesses, capacity, warm=warm, restart_at_s=restart_at_s, window_s=window_s).hit_blocks


def _preorder(parents: Ints) -> tuple[Ints, Ints]:
    """Return the nodes in preorder, and the size of each one's subtree in that order."""
    sizes = np.ones(len(parents), np.int64)
    children: list[list[int]] = [[] for _ in parents]
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] != NO_BLOCK:
            sizes[parents[node]] += sizes[node]
            children[parents[node]].append(node)
    order: list[int] = []
    waiting: list[int] = [node for node in range(len(parents) - 1, -1, -1) if parents[node] == NO_BLOCK]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += children[node]
    preorder = np.asarray(order, np.int64)
    return preorder, sizes[preorder]
