"""Did warming help? The gain of each stratum, measured on pairs, with an interval (spec 6.5d).

Pure. A pair is one item's cold twin and warm probe; the gain is their difference in time to first token. Outside the
sample a gain is inferred from its stratum, and called so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
SINGLE_PAIR_MARGIN = 0.25


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain of one stratum in ms: the median of the paired differences. No interval below two pairs.

    ``is_slower`` says that warm was shown not to be faster: the whole interval lies at or below 0. A single pair has no
    interval; it speaks only when warm took at least a quarter longer than cold.
    """

    n: int
    median_ms: float
    low_ms: float | None
    high_ms: float | None

    is_slower: bool


def gain_of(pairs: Sequence[tuple[float, float]], *, seed: int) -> Gain | None:
    """Return the gain over (cold ms, warm ms) pairs, or None without any.

    The interval is the percentile bootstrap of the median; medians, since one stall of a host would carry a mean.

    Args:
        pairs: cold and warm time to first token of the same item.
        seed: of the run.
    """
    if not pairs:
        return None
    differences = np.array([cold - warm for cold, warm in pairs])
    median = float(np.median(differences))
    if len(pairs) < 2:
        return Gain(1, median, None, None, is_slower=-median >= SINGLE_PAIR_MARGIN * pairs[0][0])
    chosen = np.random.default_rng(seed).integers(0, len(pairs), size=(RESAMPLES, len(pairs)))
    medians = np.median(differences[chosen], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(value) for value in np.quantile(medians, [tail, 1 - tail]))
    return Gain(len(pairs), median, low, high, is_slower=high <= 0)
