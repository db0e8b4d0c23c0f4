"""From the prefix tree to the nodes that a plan may choose from: used often enough, not too deep, the top ones.

Pruning keeps the tree prefix-closed: an ancestor is asked for at least as often as what stands below it. Here too the
subtree roots are named at which the plan randomises its holdout (spec 2.5).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from warmup_tasks.demand.prefix_tree import NO_NODE, Floats, Ints, PrefixTree


class Candidates(NamedTuple):
    """``nodes``: the kept nodes, parents first. ``roots``: the subtree root of every tree node, or None.

    A node that several kept subtrees share belongs to none of them and has no root. ``levels``: branchings above each
    node. ``dropped``: how many nodes fell to which rule.
    """

    nodes: list[int]
    roots: list[str | None]
    levels: Ints
    dropped: dict[str, int]


def choose_candidates(
    tree: PrefixTree, uses: Floats, expected_uses: Floats, *, min_uses: int, prefetch_depth: int, top_k: int
) -> Candidates:
    """Return the nodes worth a plan's while.

    Args:
        tree: the whole tree.
        uses: of each node in the lookback.
        expected_uses: of each node in the horizon.
        min_uses: rarer nodes are dropped.
        prefetch_depth: branchings below a tree's first run that are still considered (spec 4.4).
        top_k: nodes kept by expected tokens saved; their ancestors stay with them.
    """
    frequent = uses >= min_uses
    levels = _levels(tree, frequent)
    shallow = frequent & (levels <= prefetch_depth)
    saved = expected_uses * (tree.end_tokens - tree.start_tokens)
    ranked = sorted(np.flatnonzero(shallow), key=lambda node: (-saved[node], tree.end_tokens[node], tree.name[node]))
    kept: set[int] = set()
    for node in ranked[:top_k]:
        above = int(node)
        while above != NO_NODE and above not in kept:
            kept.add(above)
            above = int(tree.parent[above])
    dropped = {
        "too rare": int((~frequent).sum()),
        "below prefetch depth": int((frequent & ~shallow).sum()),
        "beyond top_k": int(shallow.sum()) - len(kept),
    }
    return Candidates(sorted(kept), _roots(tree, kept), levels, dropped)


def _children(tree: PrefixTree, kept: npt.NDArray[np.bool_]) -> Ints:
    inner = kept & (tree.parent != NO_NODE)
    return np.bincount(tree.parent[inner], minlength=len(tree)).astype(np.int64)


def _levels(tree: PrefixTree, kept: npt.NDArray[np.bool_]) -> Ints:
    children = _children(tree, kept)
    levels = np.zeros(len(tree), dtype=np.int64)
    for node, above in enumerate(tree.parent):
        if above != NO_NODE:
            levels[node] = levels[above] + (children[above] > 1)
    return levels


def _roots(tree: PrefixTree, kept: set[int]) -> list[str | None]:
    """Name each node's subtree root: the first node on its way from the top below which nothing is shared any more."""
    mask = np.zeros(len(tree), dtype=bool)
    mask[list(kept)] = True
    children = _children(tree, mask)
    branches_below = np.zeros(len(tree), dtype=bool)
    for node in range(len(tree) - 1, -1, -1):
        above = tree.parent[node]
        if above != NO_NODE and mask[node]:
            branches_below[above] |= branches_below[node] | (children[above] > 1)
    roots: list[str | None] = [None] * len(tree)
    is_shared = np.zeros(len(tree), dtype=bool)
    for node, above in enumerate(tree.parent):
        at_top = above == NO_NODE or is_shared[above]
        if at_top and mask[node]:
            level_zero = above == NO_NODE or children[above] < 2
            is_shared[node] = bool(branches_below[node]) and level_zero
            roots[node] = None if is_shared[node] else tree.name[node]
        elif above != NO_NODE:
            roots[node] = roots[above]
    return roots
