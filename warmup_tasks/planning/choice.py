"""Which blocks of a log to load at a restart: the predicted ones, closed under prefixes, within a budget.

The same predictor as the nightly plan's, on accesses instead of the demand tables: for replays and measurements.
"""

import numpy as np

from warmup_tasks.demand.prefix_tree import NO_NODE, Floats, Ints
from warmup_tasks.demand.reuse import Basis, History, Prediction, predict
from warmup_tasks.replay.accesses import Accesses, Ids
from warmup_tasks.replay.oracle import best_closed_set


class BlockChooser:
    """Chooses from what a log asked for before a moment.

    Args:
        past: the log; what it holds at or after ``as_of_s`` is not looked at. Its names must be chained hashes.
        as_of_s: on the log's clock.
        window_s: how far ahead the choice looks.
        seed: of the predictor.
    """

    def __init__(self, past: Accesses, as_of_s: float, window_s: float, *, seed: int = 0) -> None:
        past = past.between(until_s=as_of_s)
        self._block_tokens = past.block_tokens
        self._numbers = np.unique(past.ids).astype(np.int64)
        parents, depths, leaf = _block_tree(past, self._numbers)
        self._parents = parents
        self.history, node_of = _history(parents, depths, leaf, past)
        self.prediction: Prediction = predict(self.history, as_of_s, window_s, seed=seed)
        parts = self.history.origin * (depths.max(initial=0) + 1) + self.history.end_tokens // past.block_tokens
        self._part_of: Ints = np.searchsorted(parts, node_of * (depths.max(initial=0) + 1) + depths)

    def basis(self, budget_blocks: int) -> Basis:
        """Return whose prediction counts at a budget."""
        return self.prediction.basis(budget_blocks * self._block_tokens)

    def scores(self, basis: Basis) -> Floats:
        """Return somebody's score of each block asked for so far, in ascending order of block numbers."""
        return self.prediction.by_node(self.history, basis)[self._part_of]

    def choose(self, budget_blocks: int) -> Ids:
        """Return the whole prefixes of largest predicted gain, in the order of loading, hottest last.

        All blocks cost the same prefill, and no block's chance exceeds that of the block before it, so the knapsack on
        the tree is solved exactly.
        """
        scores = self.scores(self.basis(budget_blocks))
        chosen = np.flatnonzero(best_closed_set(self._parents, scores, budget_blocks))
        order = np.lexsort((-chosen, scores[chosen]))
        return self._numbers[chosen[order]].astype(np.int32)


def _block_tree(past: Accesses, numbers: Ints) -> tuple[Ints, Ints, Ints]:
    """Return parent and depth (from 1) of each block asked for, and each request's last block, all renumbered."""
    place = np.full(past.blocks + 1, NO_NODE, np.int64)
    place[numbers] = np.arange(len(numbers))
    parents = place[past.parents()[numbers]]
    depths = np.ones(len(numbers), np.int64)
    jump = parents.copy()
    while (is_inner := jump != NO_NODE).any():
        depths[is_inner] += depths[jump[is_inner]]
        jump[is_inner] = jump[jump[is_inner]]
    leaf = np.full(len(past), NO_NODE, np.int64)
    has_blocks = past.lengths() > 0
    leaf[has_blocks] = place[past.ids[past.offsets[1:][has_blocks] - 1]]
    return parents, depths, leaf


def _history(parents: Ints, depths: Ints, leaf: Ints, past: Accesses) -> tuple[History, Ints]:
    """Return the blocks joined to runs, and the run of each block."""
    children = np.bincount(parents[parents != NO_NODE], minlength=len(parents))
    is_end = children != 1
    is_end[leaf[leaf != NO_NODE]] = True
    is_head = (parents == NO_NODE) | is_end[parents]
    head = np.where(is_head, np.arange(len(parents)), parents)
    while not np.array_equal(further := head[head], head):
        head = further
    run_of = (np.cumsum(is_head) - 1)[head]
    above = parents[is_head]
    tokens = past.block_tokens
    start = (depths[is_head] - 1) * tokens
    history = History.of_tree(
        np.where(above == NO_NODE, NO_NODE, run_of[above]),
        start,
        start + np.bincount(run_of, minlength=int(is_head.sum())) * tokens,
        np.where(leaf == NO_NODE, NO_NODE, run_of[leaf]) if len(run_of) else leaf,
        past.times_s,
        step_tokens=tokens,
    )
    return history, run_of
