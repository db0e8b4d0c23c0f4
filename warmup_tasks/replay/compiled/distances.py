"""Stack distances: how many distinct blocks were touched since a block's last touch, itself included.

A bit marks the position of each block's last touch; a Fenwick tree counts the bits of whole 64-bit words. O(n log n).
"""

import numpy as np
import numpy.typing as npt

from warmup_tasks.replay.compiled import compiled

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


@compiled
def _ones(word: np.uint64) -> np.int64:
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def needed_capacities(ids: Ids, touches: Ids, offsets: Ints, blocks: int, counts_runs: bool) -> Ints:
    """Return how many accesses hit at exactly which least capacity: entry c counts those that need c blocks.

    Args:
        ids: blocks in prompt order, shape (accesses,).
        touches: the same blocks in the order in which each request touches them.
        offsets: request r has ``ids[offsets[r]:offsets[r + 1]]``.
        blocks: number of distinct blocks.
        counts_runs: an access needs what the deepest leading block needs; else what it needs itself, at its own touch.

    Returns:
        Shape (blocks + 1,); first accesses, which no capacity serves, are not in it.
    """
    needed = np.zeros(blocks + 1, np.int64)
    last = np.full(blocks, -1, np.int64)
    words = np.zeros(ids.size // 64 + 1, np.uint64)
    tree = np.zeros(words.size + 1, np.int32)
    alive = 0
    for request in range(offsets.size - 1):
        start, stop = offsets[request], offsets[request + 1]
        deepest = 0
        if counts_runs:
            for position in range(start, stop):
                if last[ids[position]] < 0:
                    break
                deepest = max(deepest, _distance(last[ids[position]], words, tree, alive))
                needed[deepest] += 1
        for position in range(start, stop):
            block = touches[position]
            before = last[block]
            if before < 0:
                alive += 1
            else:
                if not counts_runs:
                    needed[_distance(before, words, tree, alive)] += 1
                words[before >> 6] ^= np.uint64(1) << np.uint64(before & 63)
            last[block] = position
            words[position >> 6] |= np.uint64(1) << np.uint64(position & 63)
            if before < 0 or before >> 6 != position >> 6:
                _add(tree, position >> 6, 1)
                if before >= 0:
                    _add(tree, before >> 6, -1)
    return needed


@compiled
def _add(tree: Ids, word: int, change: int) -> None:
    node = word + 1
    while node < tree.size:
        tree[node] += change
        node += node & -node


@compiled
def _distance(position: int, words: npt.NDArray[np.uint64], tree: Ids, alive: int) -> int:
    """Return how many marked positions lie at or after ``position``."""
    word = position >> 6
    below = words[word] & ((np.uint64(1) << np.uint64(position & 63)) - np.uint64(1))
    before = _ones(below)
    node = word
    while node > 0:
        before += tree[node]
        node -= node & -node
    return int(alive - before)
