"""The precedence-constrained knapsack on a forest, exactly: nodes × budget cells of time and memory.

Nodes stand in preorder. For a node, either it is taken and the next in preorder comes, or it is not and its whole
subtree is passed over.
"""

import numpy as np
import numpy.typing as npt

from warmup_tasks.replay.compiled import compiled

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@compiled
def best_closed(sizes: Ints, weights: Ints, gains: Floats, budget: int) -> npt.NDArray[np.bool_]:
    """Return which nodes to take.

    Args:
        sizes: nodes in each node's subtree, itself included, in preorder.
        weights: of each node, 0 or more.
        gains: of each node.
        budget: sum of weights that may be taken.
    """
    nodes = sizes.size
    best = np.zeros((nodes + 1, budget + 1), np.float64)
    for node in range(nodes - 1, -1, -1):
        passed = node + sizes[node]
        for room in range(budget + 1):
            best[node, room] = best[passed, room]
            if weights[node] <= room:
                taken = gains[node] + best[node + 1, room - weights[node]]
                best[node, room] = max(best[node, room], taken)
    chosen = np.zeros(nodes, np.bool_)
    node, room = 0, budget
    while node < nodes:
        if best[node, room] == best[node + sizes[node], room]:
            node += sizes[node]
        else:
            chosen[node] = True
            room -= weights[node]
            node += 1
    return chosen
