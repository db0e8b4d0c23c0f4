"""Sentence vectors for ``/v1/embeddings``: texts with common tokens point in similar directions.

Here lives the vector of a list of tokens. No model, no HTTP.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class Embedder:
    """Adds one fixed random direction per token and normalises. Deterministic in every process."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._direction = lru_cache(65_536)(self._make_direction)

    def embed(self, tokens: Sequence[int]) -> list[float]:
        """Return the unit vector of these tokens (``dimensions`` floats)."""
        total = sum((self._direction(token) for token in tokens), np.zeros(self._dimensions, dtype=np.float32))
        length = float(np.linalg.norm(total))
        unit: list[float] = (total / length if length else total).tolist()
        return unit

    def _make_direction(self, token: int) -> NDArray[np.float32]:
        return np.random.default_rng(token).standard_normal(self._dimensions, dtype=np.float32)
