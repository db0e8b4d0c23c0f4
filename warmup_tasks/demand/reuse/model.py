"""The reuse model: from what the log knew at earlier moments to what the window after each of them asked for.

A boosted classifier of few leaves, held to what recency alone says: a session's nodes share one fate, so there are far
fewer cases to learn from than rows, and a bolder model would learn single sessions by heart. It is trained on the log
before ``as_of`` alone. Whether it is used at all is decided in ``predict.py``.
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
_STEPS = 64
_TOKENS_POWER = 0.75
_RECENCY_WEIGHT = 0.5
_NEVER_RISES_WITH = ("age_s", "requests_since", "session_age_s")
_LEAST_CHANCE = 1e-3
_TIE_BREAK = 1e-6
_AGE = NAMES.index("age_s")


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


class RecencyModel:
    """The chance of being asked for by the time since the last use alone: a falling curve through past moments."""

    def __init__(self, curve: Any) -> None:
        self._curve = curve

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> Self:
        """Fit the curve to samples, each node by its tokens."""
        from sklearn.isotonic import IsotonicRegression

        ages = np.concatenate([sample.features[:, _AGE] for sample in samples])
        is_used = np.concatenate([sample.is_used for sample in samples])
        tokens = np.concatenate([sample.tokens for sample in samples]).astype(np.float64)
        curve = IsotonicRegression(increasing=False, out_of_bounds="clip", y_min=_LEAST_CHANCE, y_max=1 - _LEAST_CHANCE)
        return cls(curve.fit(np.log1p(ages), is_used, sample_weight=tokens))

    def chance(self, features: Floats) -> Floats:
        """Return each node's chance, in the very order of recency."""
        if not len(features):
            return np.zeros(0)
        return (1 - _TIE_BREAK) * self.bare_chance(features) + _TIE_BREAK * by_recency(features)

    def bare_chance(self, features: Floats) -> Floats:
        """Return the curve's chance; equal ages, and ages that the curve does not tell apart, share one."""
        return np.asarray(self._curve.predict(np.log1p(features[:, _AGE])), np.float64)


class ReuseModel:
    """A boosted classifier over the features that the log knows, and the curve of recency that it leans on."""

    def __init__(self, classifier: Any, columns: Ints, edges: Sequence[Floats], recency: RecencyModel) -> None:
        self._classifier, self._columns, self._edges, self.recency = classifier, columns, edges, recency

    @classmethod
    def fit(cls, samples: Sequence[Sample], seed: int) -> Self:
        """Train on samples that hold both used and unused nodes; rows beyond a limit are drawn by seed.

        Values become steps before the classifier sees them: cutting them itself is what takes it longest.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

        values = np.concatenate([sample.features for sample in samples])
        is_used = np.concatenate([sample.is_used for sample in samples])
        tokens = np.concatenate([sample.tokens for sample in samples])
        rows, weights = _drawn(is_used, (tokens / tokens.mean()) ** _TOKENS_POWER, seed)
        columns = np.flatnonzero((~np.isnan(values)).any(axis=0))
        edges = [_edges(values[:, column]) for column in columns]
        classifier = HistGradientBoostingClassifier(
            learning_rate=0.05,
            max_iter=150,
            max_leaf_nodes=4,
            min_samples_leaf=80,
            l2_regularization=20.0,
            monotonic_cst=[-1 if NAMES[column] in _NEVER_RISES_WITH else 0 for column in columns],
            random_state=seed,
        )
        with threadpool_limits(1):  # sums in one order: the same plan on every machine
            classifier.fit(_stepped(values[rows][:, columns], edges), is_used[rows], sample_weight=weights)
        return cls(classifier, columns, edges, RecencyModel.fit(samples))

    def chance(self, history: History, nodes: Ints, features: Floats) -> Floats:
        """Return each node's chance of being asked for in the window; it never rises on the way down.

        Where the model sees no difference, the more recent node has a little more.
        """
        if not len(nodes):
            return np.zeros(0)
        odds = self._classifier.decision_function(_stepped(features[:, self._columns], self._edges))
        by_age = self.recency.bare_chance(features)
        odds = (odds + _RECENCY_WEIGHT * np.log(by_age / (1 - by_age))) / (1 + _RECENCY_WEIGHT)
        chance = 1 / (1 + np.exp(-odds))
        return (1 - _TIE_BREAK) * _closed(history, nodes, chance) + _TIE_BREAK * by_recency(features)


def by_count(features: Floats) -> Floats:
    """Return the nodes' order by uses, among equals by recency, as ranks in (0, 1]."""
    return _ranks(-features[:, _AGE], features[:, NAMES.index("uses")])


def by_recency(features: Floats) -> Floats:
    """Return the nodes' order by their last use, as ranks in (0, 1]."""
    return _ranks(-features[:, _AGE])


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


def _edges(values: Floats) -> Floats:
    """Return where a feature's values are cut into steps: at its own quantiles."""
    known = values[~np.isnan(values)]
    edges: Floats = np.unique(np.quantile(known, np.linspace(0, 1, _STEPS + 1)[1:-1]))
    return edges


def _stepped(values: Floats, edges: Sequence[Floats]) -> Floats:
    steps = np.empty(values.shape)
    for column, own in enumerate(edges):
        steps[:, column] = np.searchsorted(own, values[:, column], side="left")
    steps[np.isnan(values)] = np.nan
    return steps


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
