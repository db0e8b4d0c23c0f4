"""The loops behind a passive warm-up's choice, compiled with numba: arrays in, arrays out.

Only ``choice.py`` calls them, when a choice is made.
"""

import numpy as np
import numpy.typing as npt

from warmup_tasks.replay.compiled import compiled

Ids = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@compiled
def weigh(
    ids: Ids, offsets: Ints, times: Floats, first: int, stop: int, now: float, tau: float, weights: Floats, counts: Ints
) -> Ids:
    """Add up weights and counts of the blocks of requests [first, stop); return the blocks, parents first.

    Args:
        ids: all accesses.
        offsets: request r has ``ids[offsets[r]:offsets[r + 1]]``.
        times: arrival of each request.
        first: first request.
        stop: one after the last.
        now: ages are counted from here back.
        tau: decay; infinite counts every request whole.
        weights: receives the weights, zero before; shape (blocks,).
        counts: likewise.
    """
    touched = np.empty(min(weights.size, offsets[stop] - offsets[first]), np.int32)
    known = 0
    for request in range(first, stop):
        weight = np.exp(-(now - times[request]) / tau)
        for position in range(offsets[request], offsets[request + 1]):
            block = ids[position]
            if counts[block] == 0:
                touched[known] = block
                known += 1
            counts[block] += 1
            weights[block] += weight
    return touched[:known].copy()


@compiled
def chosen(
    touched: Ids,
    weights: Floats,
    counts: Ints,
    parents: Ids,
    places: Ints,
    least_uses: int,
    depth: int,
    top: int,
    budget: int,
) -> Ids:
    """Return the blocks to load, hottest first.

    Args:
        touched: candidates, parents before children.
        weights: of every block.
        counts: of every block.
        parents: of every block; -1 for a root.
        places: scratch, -1 for every block, and left so.
        least_uses: counts below it fall.
        depth: blocks below more branchings fall.
        top: runs that are kept; a run is a chain of blocks with one count.
        budget: blocks that are kept.
    """
    kept = touched[counts[touched] >= least_uses]
    above = _places_above(kept, parents, places)
    levels, runs, tiers = _shape(kept, counts, above)
    # Weight never rises on the way down, so ordering by weight and then by place in the prompt keeps prefixes whole.
    by_tier = np.argsort(tiers, kind="mergesort")
    order = by_tier[np.argsort(-weights[kept[by_tier]], kind="mergesort")]
    is_run_in = np.zeros(kept.size, np.bool_)
    runs_left, taken = top, 0
    result = np.empty(min(kept.size, budget), np.int32)
    for place in order:
        if taken == result.size:
            break
        if levels[place] > depth or (runs_left == 0 and not is_run_in[runs[place]]):
            continue
        if not is_run_in[runs[place]]:
            is_run_in[runs[place]] = True
            runs_left -= 1
        result[taken] = kept[place]
        taken += 1
    return result[:taken].copy()


@compiled
def _places_above(kept: Ids, parents: Ids, places: Ints) -> Ints:
    """Return where the parent of each kept block stands among them; -1 for none."""
    for place in range(kept.size):
        places[kept[place]] = place
    above = np.full(kept.size, -1, np.int64)
    for place in range(kept.size):
        if parents[kept[place]] >= 0:
            above[place] = places[parents[kept[place]]]
    for place in range(kept.size):
        places[kept[place]] = -1
    return above


@compiled
def _shape(kept: Ids, counts: Ints, above: Ints) -> tuple[Ints, Ints, Ints]:
    """Return branchings above each block, the number of its run, and its place in the prompt."""
    children = np.zeros(kept.size, np.int64)
    for place in range(kept.size):
        if above[place] >= 0:
            children[above[place]] += 1
    levels, runs, tiers = np.zeros(kept.size, np.int64), np.zeros(kept.size, np.int64), np.zeros(kept.size, np.int64)
    for place in range(kept.size):
        parent = above[place]
        runs[place] = place
        if parent >= 0:
            levels[place] = levels[parent] + (1 if children[parent] > 1 else 0)
            tiers[place] = tiers[parent] + 1
            if counts[kept[parent]] == counts[kept[place]]:
                runs[place] = runs[parent]
    return levels, runs, tiers
