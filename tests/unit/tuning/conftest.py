"""A small service for the tuning tests: a dozen system prompts, short questions, restarts that empty the cache."""

import numpy as np
import pytest

from warmup_tasks.replay.accesses import Accesses

BLOCK = 16
PROMPT_BLOCKS = 40


def service_requests(seconds: int, per_s: float, prompts: int, seed: int = 3):
    """Times and block names: each request is a shared prompt of 40 blocks and 2 blocks of its own."""
    random = np.random.default_rng(seed)
    count = int(seconds * per_s)
    times = np.sort(random.uniform(0, seconds, count))
    chosen = random.integers(0, prompts, count)
    own = iter(range(1 << 40, 1 << 41))
    names = [
        [(int(prompt) + 1) * 1000 + place for place in range(PROMPT_BLOCKS)] + [next(own), next(own)]
        for prompt in chosen
    ]
    return times, names


@pytest.fixture(scope="session")
def service() -> Accesses:
    times, names = service_requests(1500, 2.0, 60)
    return Accesses.of(names, list(times), block_tokens=BLOCK)
