"""A synthetic log of block accesses of any size: conversations that grow turn by turn behind shared system prompts.

Names are 64-bit hashes; two turns of a conversation share all blocks of the earlier one, conversations of one service
its system prompt, services follow a power law. About four accesses in ten are the first of their block.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_BLOCKS = 128
SERVICES = 2_000


def block_trace(accesses: int, seed: int = 7) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Return block names, shape (accesses,), and the number of blocks of each request."""
    conversations = max(50, accesses // 4_000)
    names, offsets = _compiled()(accesses, conversations, seed)
    return names, np.diff(offsets)


def _compiled() -> Callable[..., Any]:
    from numba import njit

    return njit(_make)


def _make(accesses, conversations, seed):  # type: ignore[no-untyped-def]  # compiled where it is needed
    np.random.seed(seed)
    names, offsets = np.empty(accesses, np.uint64), np.zeros(accesses + 1, np.int64)
    history = np.zeros((conversations, MOST_BLOCKS), np.uint64)
    lengths = np.zeros(conversations, np.int64)
    made, requests, fresh = 0, 0, np.uint64(1)
    while made < accesses:
        own = np.random.randint(conversations)
        if lengths[own] == 0 or lengths[own] >= MOST_BLOCKS - 8 or np.random.random() < 0.45:
            service = min(int((1 - np.random.random()) ** -1.2), SERVICES)
            lengths[own] = 1 + service % 8
            for place in range(lengths[own]):
                history[own, place] = np.uint64(service * 8 + place + 1) * np.uint64(0xD1342543DE82EF95)
            added = 1 + int(-np.log(1 - np.random.random()) * 14)
        else:
            added = 1 + int(-np.log(1 - np.random.random()) * 4)
        for _ in range(min(added, MOST_BLOCKS - lengths[own])):
            fresh += np.uint64(1)
            mixed = fresh * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            history[own, lengths[own]] = mixed ^ (mixed >> np.uint64(32))
            lengths[own] += 1
        length = min(lengths[own], accesses - made)
        names[made : made + length] = history[own, :length]
        made += length
        requests += 1
        offsets[requests] = made
    return names, offsets[: requests + 1].copy()
