"""Which part of a prefix tree fills a cache best: a greedy tree knapsack, closed under prefixes.

A node's blocks are worth something only together with all blocks above them, so what competes is a chain: the node with
its ancestors that are not chosen yet, by gain per block. Where gain per block never rises on the way down, as with
expected uses, the result is optimal; otherwise it is a good approximation.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

NO_NODE = -1


def allocate(parents: Sequence[int], blocks: Sequence[int], gains: Sequence[float], capacity: int) -> list[int]:
    """Return how many blocks of each node are chosen.

    A node's run may be cut at its end; below a cut nothing is chosen. The sum never exceeds the capacity.

    Args:
        parents: of each node, -1 at the top; parents stand before children.
        blocks: length of each node's run, at least 1.
        gains: of each node's whole run; a part of it gains in proportion.
        capacity: in blocks.
    """
    density = [gain / length for gain, length in zip(gains, blocks, strict=True)]
    if all(above == NO_NODE or density[node] <= density[above] for node, above in enumerate(parents)):
        return _fill(sorted(range(len(blocks)), key=lambda node: (-density[node], node)), blocks, capacity)
    cut_short = _Greedy(parents, blocks, gains, capacity).run(may_cut_at_once=True)
    whole_first = _Greedy(parents, blocks, gains, capacity).run(may_cut_at_once=False)
    return max((cut_short, whole_first), key=lambda taken: _worth(taken, blocks, gains))


def _fill(order: Sequence[int], blocks: Sequence[int], capacity: int) -> list[int]:
    taken, free = [0] * len(blocks), max(0, capacity)
    for node in order:
        taken[node] = min(blocks[node], free)
        free -= taken[node]
    return taken


def _worth(taken: Sequence[int], blocks: Sequence[int], gains: Sequence[float]) -> float:
    return sum(gain * part / whole for part, whole, gain in zip(taken, blocks, gains, strict=True) if part)


class _Greedy:
    def __init__(self, parents: Sequence[int], blocks: Sequence[int], gains: Sequence[float], capacity: int) -> None:
        self.parents, self.blocks, self.gains, self.free = parents, blocks, gains, max(0, capacity)
        self.taken = [0] * len(parents)
        self.children: list[list[int]] = [[] for _ in parents]
        self.depth = [0] * len(parents)
        for node, above in enumerate(parents):
            if above != NO_NODE:
                self.children[above].append(node)
                self.depth[node] = self.depth[above] + 1

    def run(self, *, may_cut_at_once: bool) -> list[int]:
        heap = [self._entry(node) for node in range(len(self.parents))]
        heapify(heap)
        too_long: list[int] = []
        while heap and self.free:
            entry = heappop(heap)
            node = entry[-1]
            if self.taken[node] or entry != self._entry(node):
                continue  # a fresher entry of this node stands in the heap, or it is chosen
            chain = self._chain(node)
            if sum(self.blocks[link] for link in chain) > self.free and not may_cut_at_once:
                too_long.append(node)
                continue
            for link in chain:
                self._take(link)
                for below in self._open_below(link):
                    heappush(heap, self._entry(below))
        for node in too_long:
            for link in self._chain(node):
                self._take(link)
        return self.taken

    def _take(self, node: int) -> None:
        above = self.parents[node]
        if not self.taken[node] and (above == NO_NODE or self.taken[above] == self.blocks[above]):
            self.taken[node] = min(self.blocks[node], self.free)
            self.free -= self.taken[node]

    def _chain(self, node: int) -> list[int]:
        chain = []
        while node != NO_NODE and not self.taken[node]:
            chain.append(node)
            node = self.parents[node]
        return chain[::-1]

    def _entry(self, node: int) -> tuple[float, int, int]:
        chain = self._chain(node)
        length = sum(self.blocks[link] for link in chain)
        density = sum(self.gains[link] for link in chain) / length if length else 0.0
        return (-density, self.depth[node], node)

    def _open_below(self, node: int) -> list[int]:
        found, open_ends = [], [node]
        while open_ends:
            for child in self.children[open_ends.pop()]:
                if not self.taken[child]:
                    found.append(child)
                    open_ends.append(child)
        return found
