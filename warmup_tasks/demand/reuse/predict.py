"""Who predicts: the boosted model only where it beat the simple rules on the newest part of the log.

The newest windows before ``as_of`` are predicted from the older ones. Whoever saves most tokens there, at the budget in
question, predicts the window after ``as_of``; a rule on a tie. Nothing at or after ``as_of`` is looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from warmup_tasks.demand.prefix_tree import Floats, Ints
from warmup_tasks.demand.reuse.features import features_at
from warmup_tasks.demand.reuse.history import History
from warmup_tasks.demand.reuse.model import ReuseModel, Sample, by_count, by_recency, samples_before

_HELD_BACK = 3
_LEAST_MOMENTS = 5
_LEAST_REUSED = 50
_ANY_BUDGET = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4)
_NEAR = (0.5, 1.0, 2.0)


class Basis(StrEnum):
    """Who made a prediction; the model's name carries its version."""

    MODEL = "reuse-1"
    COUNT = "count"
    RECENCY = "recency"


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the window after ``as_of`` is expected to ask for, said by the model and by the simple rules.

    Attributes:
        nodes: known nodes in ascending order.
        features: of each, shape (nodes, len(features.NAMES)).
        scores: by basis, of each node: the model's chance, or a rule's rank; none rises on the way down. Without the
            model where the log is too short to learn from.
        backtests: for each held-back window, the node lengths and uses of that window and everybody's scores.
    """

    nodes: Ints
    features: Floats
    scores: dict[Basis, Floats]
    backtests: list[tuple[Sample, dict[Basis, Floats]]]

    def saved_shares(self, budget_tokens: float | None = None) -> dict[Basis, float]:
        """Return what everybody would have saved in the held-back windows, over what could have been saved.

        Args:
            budget_tokens: tokens that fit; judged at half of it, at it and at twice it. None: a 64th to a quarter of
                what the log holds.
        """
        if not self.backtests:
            return {}
        return {
            basis: float(
                np.mean([_saved_share(sample, scores[basis], budget_tokens) for sample, scores in self.backtests])
            )
            for basis in self.scores
        }

    def basis(self, budget_tokens: float | None = None) -> Basis:
        """Return who was best in the held-back windows; by count where there are none."""
        shares = self.saved_shares(budget_tokens)
        return max((Basis.COUNT, Basis.RECENCY, Basis.MODEL), key=lambda basis: shares.get(basis, -1.0))

    def by_node(self, history: History, basis: Basis) -> Floats:
        """Return somebody's score of every node of the history; 0 for unknown ones."""
        scores = np.zeros(len(history.parent))
        scores[self.nodes] = self.scores[basis]
        return scores


def predict(history: History, as_of_s: float, window_s: float, *, seed: int = 0) -> Prediction:
    """Return which nodes will be asked for in [as_of, as_of + window).

    Args:
        history: the log; what it holds at or after ``as_of`` is not looked at.
        as_of_s: on the log's clock.
        window_s: how far ahead.
        seed: which rows are drawn where there are too many.
    """
    nodes, features = features_at(history, as_of_s, window_s)
    scores = {Basis.COUNT: by_count(features), Basis.RECENCY: by_recency(features)}
    samples = samples_before(history, as_of_s, window_s)
    held_back, older = samples[:_HELD_BACK], samples[_HELD_BACK:]
    if len(samples) < _LEAST_MOMENTS or not _can_learn(older):
        return Prediction(nodes, features, scores, [])
    judged = ReuseModel.fit(older, seed)
    scores[Basis.MODEL] = ReuseModel.fit(samples, seed).chance(history, nodes, features)
    return Prediction(nodes, features, scores, [(sample, _scores(history, judged, sample)) for sample in held_back])


def _can_learn(samples: Sequence[Sample]) -> bool:
    used = sum(float(sample.is_used.sum()) for sample in samples)
    return _LEAST_REUSED <= used <= sum(len(sample.nodes) for sample in samples) - _LEAST_REUSED


def _scores(history: History, model: ReuseModel, sample: Sample) -> dict[Basis, Floats]:
    return {
        Basis.MODEL: model.chance(history, sample.nodes, sample.features),
        Basis.COUNT: by_count(sample.features),
        Basis.RECENCY: by_recency(sample.features),
    }


def _saved_share(sample: Sample, score: Floats, budget_tokens: float | None) -> float:
    """Return the tokens that the highest scores save, over the most that could be saved; a mean over budgets."""
    order = np.argsort(-score, kind="stable")
    spent = np.concatenate([[0], np.cumsum(sample.tokens[order])])
    saved = np.concatenate([[0], np.cumsum((sample.is_used * sample.tokens)[order])])
    if not saved[-1]:
        return 0.0
    shares, whole = (_ANY_BUDGET, spent[-1]) if budget_tokens is None else (_NEAR, budget_tokens)
    budgets = np.asarray(shares) * whole
    return float((np.interp(budgets, spent, saved) / np.minimum(budgets, saved[-1])).mean())
