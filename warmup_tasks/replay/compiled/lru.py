"""Least recently used, exactly, without a list: the sequence of touches is itself the queue.

A block is resident while its last touch lies at or after ``head``. Evicting moves ``head`` forward over touches that a
later touch of the same block has made void, to the first one that still counts. No links, no deletions: one random read
and write an access, and one sequential scan.
"""

import numpy as np
import numpy.typing as npt

from warmup_tasks.replay.compiled import compiled

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]


@compiled
def replay_lru(
    ids: Ids, touches: Ids, offsets: Ints, blocks: int, capacity: int, counts_runs: bool
) -> tuple[Ids, int, int]:
    """Play all requests against one cache.

    Args:
        ids: blocks in prompt order, shape (accesses,).
        touches: the same blocks in the order in which each request touches them.
        offsets: request r has ``ids[offsets[r]:offsets[r + 1]]``.
        blocks: number of distinct blocks.
        capacity: blocks that fit.
        counts_runs: count leading hits only; else every block found at its own touch.

    Returns:
        Hits per request, blocks inserted, blocks evicted.
    """
    last = np.full(blocks, -1, np.int64)
    hits = np.zeros(offsets.size - 1, np.int32)
    head, resident, inserted = 0, 0, 0
    for request in range(offsets.size - 1):
        start, stop = offsets[request], offsets[request + 1]
        if counts_runs:
            run = start
            while run < stop and last[ids[run]] >= head:
                run += 1
            hits[request] = run - start
        for position in range(start, stop):
            block = touches[position]
            is_resident = last[block] >= head
            last[block] = position
            if is_resident:
                if not counts_runs:
                    hits[request] += 1
                continue
            inserted += 1
            resident += 1
            while resident > capacity:
                if last[touches[head]] == head:
                    resident -= 1
                head += 1
    return hits, inserted, inserted - resident


@compiled
def trailing_first(ids: Ids, offsets: Ints) -> Ids:
    """Return each request's blocks in reverse order."""
    touches = np.empty_like(ids)
    for request in range(offsets.size - 1):
        start, stop = offsets[request], offsets[request + 1]
        for position in range(start, stop):
            touches[position] = ids[start + stop - 1 - position]
    return touches
