"""The boosted model: from what the log knew at earlier moments to what the window after each of them asked for.

It is trained on the log before ``as_of`` alone. Whether it is used at all is decided in ``predict.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from warmup_tasks.demand.prefix_tree import NO_NODE, Floats, Ints
from warmup_tasks.demand.reuse.features import NAMES, features_at, uses_between
from warmup_tasks.demand.reuse.history import History

_MOST_MOMENTS = 10
_MOST_ROWS = 40_000
_TIE_BREAK = 1e-6


@dataclass(frozen=True, eq=False)
class Sample:
    """What was known at one moment, and which of the known nodes the window after it asked for.

    Attributes:
        nodes: known nodes in ascending order.
        features: shape (nodes, len(NAMES)).
        is_used: 1 or 0 of each.
        tokens: length of each.
    """

    nodes: Ints
    features: Floats
    is_used: Floats
    tokens: Ints


def samples_before(history: History, as_of_s: float, window_s: float) -> list[Sample]:
    """Return samples whose windows end by ``as_of``, the newest first, half a window apart."""
    found: list[Sample] = []
    while len(history.times_s) and len(found) < _MOST_MOMENTS:
        moment = as_of_s - window_s * (1 + len(found) / 2)
        if moment - history.times_s[0] < window_s / 2:
            break
        nodes, features = features_at(history, moment, window_s)
        uses = uses_between(history, moment, moment + window_s)[nodes]
        found.append(Sample(nodes, features, (uses > 0).astype(np.float64), history.tokens[nodes]))
    return found


class ReuseModel:
    """A boosted classifier over the features that the log knows."""

    def __init__(self, classifier: Any, columns: Ints) -> None:
        self._classifier, self._columns = classifier, columns

    @classmethod
    def fit(cls, samples: Sequence[Sample], seed: int) -> Self:
        """Train on samples that hold both used and unused nodes; rows beyond a limit are drawn by seed."""
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

        values = np.concatenate([sample.features for sample in samples])
        is_used = np.concatenate([sample.is_used for sample in samples])
        tokens = np.concatenate([sample.tokens for sample in samples])
        rows, weights = _drawn(is_used, np.sqrt(tokens / tokens.mean()), seed)
        columns = np.flatnonzero((~np.isnan(values)).any(axis=0))
        classifier = HistGradientBoostingClassifier(
            learning_rate=0.05,
            max_iter=120,
            max_leaf_nodes=24,
            min_samples_leaf=40,
            l2_regularization=5.0,
            random_state=seed,
        )
        with threadpool_limits(1):  # sums in one order: the same plan on every machine
            classifier.fit(values[rows][:, columns], is_used[rows], sample_weight=weights)
        return cls(classifier, columns)

    def chance(self, history: History, nodes: Ints, features: Floats) -> Floats:
        """Return each node's chance of being asked for in the window; it never rises on the way down.

        Where the model sees no difference, the more recent node has a little more.
        """
        if not len(nodes):
            return np.zeros(0)
        chance = np.asarray(self._classifier.predict_proba(features[:, self._columns])[:, 1], np.float64)
        return (1 - _TIE_BREAK) * _closed(history, nodes, chance) + _TIE_BREAK * by_recency(features)


def by_count(features: Floats) -> Floats:
    """Return the nodes' order by uses, among equals by recency, as ranks in (0, 1]."""
    return _ranks(-features[:, NAMES.index("age_s")], features[:, NAMES.index("uses")])


def by_recency(features: Floats) -> Floats:
    """Return the nodes' order by their last use, as ranks in (0, 1]."""
    return _ranks(-features[:, NAMES.index("age_s")])


def _ranks(*keys: Floats) -> Floats:
    """Return ranks by the last key, among equals by the one before it; equals in all keys share one."""
    order = np.lexsort(keys)
    is_next = np.zeros(len(order), np.bool_)
    for key in keys:
        is_next[1:] |= key[order][1:] != key[order][:-1]
    ranks = np.empty(len(order))
    ranks[order] = (np.cumsum(is_next) + 1.0) / (is_next.sum() + 1.0)
    return ranks


def _closed(history: History, nodes: Ints, chance: Floats) -> Floats:
    """Raise every node to the chance of what stands below it: whoever asks for that asks for the node too."""
    every = np.zeros(len(history.parent))
    every[nodes] = chance
    for node in nodes[::-1].tolist():
        above = history.parent[node]
        if above != NO_NODE and every[above] < every[node]:
            every[above] = every[node]
    return every[nodes]


def _drawn(is_used: Floats, weights: Floats, seed: int) -> tuple[Ints, Floats]:
    """Return all used rows and as many unused ones as there is room for, which speak for those left out."""
    unused = np.flatnonzero(is_used == 0)
    room = max(_MOST_ROWS - int(is_used.sum()), _MOST_ROWS // 2)
    if len(unused) <= room:
        return np.arange(len(is_used)), weights
    drawn = np.random.default_rng(seed).choice(unused, room, replace=False)
    weights = weights.copy()
    weights[drawn] *= len(unused) / room
    rows = np.sort(np.concatenate([np.flatnonzero(is_used), drawn]))
    return rows, weights[rows]
