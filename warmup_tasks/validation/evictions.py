"""What looks and other traffic may have evicted: a hit is only worth something while it cannot have been displaced.

A cache gives up what was used least recently. So a prefix that was seen resident stays for certain as long as it, and
all that was used after it, fit into the cache together. What cannot be shown to fit is not ready (spec 6.2). Pure.
"""

from collections.abc import Sequence

from warmup_tasks.engines.base import EngineMetrics
from warmup_tasks.lake.records import Key

_OTHERS_WEIGHT = 2
"""What others insert counts twice, as half of the turnover is what a mark may live (spec 1.2)."""


class Displacement:
    """Keeps the books of one replica's cache while it is looked at, one request after another.

    Args:
        capacity_blocks: as the engine reports it; one block of them is never used, one holds the end of a prompt.
        block_size: in tokens.
    """

    def __init__(self, capacity_blocks: int, block_size: int) -> None:
        self._capacity, self._block_size = capacity_blocks - 2, block_size
        self._used: list[tuple[Key | None, Sequence[bytes], int]] = []

    def used(self, key: Key | None, chain: Sequence[bytes], tokens: int) -> None:
        """Note one request: the blocks of the item it asked for, and all the tokens it may have left in the cache.

        Args:
            key: of the item, None for a request that looks at none.
            chain: names of the item's whole blocks, in their order; what two items share has one name.
            tokens: of prompt and answer.
        """
        self._used.append((key, chain, max(0, tokens // self._block_size - len(chain))))

    def room(self) -> int:
        """Return how many blocks more may be written before the first item that was looked at is displaced."""
        return max(0, self._capacity - self._need(0.0)[1])

    def doubtful(self, others_tokens: float) -> set[Key]:
        """Return the items that may have been displaced since they were looked at.

        Args:
            others_tokens: inserted by others meanwhile; nobody knows when.
        """
        return self._need(others_tokens)[0]

    def _need(self, others_tokens: float) -> tuple[set[Key], int]:
        """Return the items that do not fit with all that was used after them, and the blocks that all need together."""
        after: set[bytes] = set()
        nameless = _OTHERS_WEIGHT * int(-(-max(0.0, others_tokens) // self._block_size))
        found: set[Key] = set()
        for key, chain, more in reversed(self._used):
            after.update(chain)
            nameless += more
            if key is not None and len(after) + nameless > self._capacity:
                found.add(key)
        return found, len(after) + nameless


def others_tokens(before: EngineMetrics, after: EngineMetrics, own_tokens: int) -> float:
    """Return the tokens that others than these looks inserted between two scrapes."""
    queries = after.prefix_queries_tokens - before.prefix_queries_tokens
    hits = after.prefix_hits_tokens - before.prefix_hits_tokens
    return max(0.0, queries - hits - own_tokens)


def half_turnover_s(after: EngineMetrics, others_tokens: float, took_s: float) -> float | None:
    """Return half of the cache's capacity over the rate at which others insert tokens (spec 1.2)."""
    if others_tokens <= 0 or took_s <= 0:
        return None
    return 0.5 * after.capacity_blocks * after.block_size / (others_tokens / took_s)
