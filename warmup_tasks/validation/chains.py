"""What the first look at each block said: the memory that keeps a probe from proving its own work (spec 6.4).

A probe is a write: one that misses re-warms the item, and whatever shares its blocks would then seem resident. So
blocks carry the state of their *first* look, and an item is as its blocks are. Pure.
"""

import hashlib
from collections.abc import Sequence

from warmup_tasks.items import Residency


class FirstLooks:
    """The blocks of one replica that probes have come by, ``block_size`` tokens each."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._missing: set[bytes] = set()
        self._spoiled: set[bytes] = set()

    def chain(self, model: str, cache_salt: str | None, token_ids: Sequence[int], expected_tokens: int) -> list[bytes]:
        """Return one name a whole block within the first ``expected_tokens``; a name covers all tokens before it."""
        names: list[bytes] = []
        name = hashlib.sha256(repr((model, cache_salt)).encode()).digest()
        for start in range(0, expected_tokens - self._block_size + 1, self._block_size):
            block = token_ids[start : start + self._block_size]
            name = hashlib.sha256(name + b",".join(b"%d" % token for token in block)).digest()
            names.append(name)
        return names

    def state(self, chain: Sequence[bytes]) -> Residency | None:
        """Return what earlier looks already settled: a miss, or that it can no longer be told; None: look."""
        if any(name in self._missing for name in chain):
            return Residency.MISS
        return Residency.UNVERIFIED if any(name in self._spoiled for name in chain) else None

    def saw(self, chain: Sequence[bytes], cached_tokens: int) -> None:
        """Record a first look: the leading ``cached_tokens`` were there, the rest was not."""
        self._missing.update(chain[cached_tokens // self._block_size :])

    def spoiled(self, chain: Sequence[bytes]) -> None:
        """Record a look that told nothing but may have written: what shares these blocks cannot be told any more."""
        self._spoiled.update(chain)
