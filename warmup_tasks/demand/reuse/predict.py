"""Who predicts: the model, unless a simple rule was clearly better on the newest part of the log.

The newest windows before ``as_of`` are predicted from what lay before them, and everybody's choice is judged by the
tokens that it would have saved there, at the budget in question. A few windows are a noisy judge: the model leans on
recency already, so it gives way only to a rule that beat it by more than chance would. Nothing at or after ``as_of`` is
looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from warmup_tasks.demand.prefix_tree import Floats, Ints
from warmup_tasks.demand.reuse.features import features_at
from warmup_tasks.demand.reuse.history import History
from warmup_tasks.demand.reuse.model import ReuseModel, Sample, by_count, samples_before

_HELD_BACK = 3
_FOLDS = 2
_OVERLAP = 1
_LEAST_MOMENTS = 5
_LEAST_REUSED = 50
_CLEARLY = 1.0
_ANY_BUDGET = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4)
_NEAR = (0.5, 1.0, 2.0)


class Basis(StrEnum):
    """Who made a prediction; the model's name carries its version."""

    MODEL = "reuse-2"
    COUNT = "count"
    RECENCY = "recency"


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the window after ``as_of`` is expected to ask for, said by the model and by the simple rules.

    Attributes:
        nodes: known nodes in ascending order.
        features: of each, shape (nodes, len(features.NAMES)).
        scores: by basis, of each node: a chance by the model and by recency, a rank by count; none rises on the way
            down. Count alone where the log is too short to learn from.
        backtests: for each held-back window, the newest first, the node lengths and uses of that window and
            everybody's scores.
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
        return {basis: float(shares.mean()) for basis, shares in self._judged(budget_tokens).items()}

    def basis(self, budget_tokens: float | None = None) -> Basis:
        """Return whose prediction counts: the model's, unless a rule was better by more than one standard error.

        By count where nobody could be judged.
        """
        judged = self._judged(budget_tokens)
        best, margin = Basis.MODEL, 0.0
        for rule in (Basis.COUNT, Basis.RECENCY) if judged else ():
            ahead = judged[rule] - judged[Basis.MODEL]
            clearly = ahead.mean() - _CLEARLY * ahead.std(ddof=1) / np.sqrt(len(ahead))
            if clearly > margin:
                best, margin = rule, float(clearly)
        return best if judged else Basis.COUNT

    def calibration(self) -> float | None:
        """Return the tokens that the model expected to be asked for in the held-back windows, over those that were."""
        expected = sum(float((scores[Basis.MODEL] * sample.tokens).sum()) for sample, scores in self.backtests)
        asked = sum(float((sample.is_used * sample.tokens).sum()) for sample, _ in self.backtests)
        return expected / asked if asked else None

    def by_node(self, history: History, basis: Basis) -> Floats:
        """Return somebody's score of every node of the history; 0 for unknown ones."""
        scores = np.zeros(len(history.parent))
        scores[self.nodes] = self.scores[basis]
        return scores

    def _judged(self, budget_tokens: float | None) -> dict[Basis, Floats]:
        """Return everybody's saved share in each held-back window, the newest first; empty where there are none."""
        if not self.backtests:
            return {}
        return {
            basis: np.asarray([_saved_share(sample, scores[basis], budget_tokens) for sample, scores in self.backtests])
            for basis in self.scores
        }


def predict(history: History, as_of_s: float, window_s: float, *, seed: int = 0) -> Prediction:
    """Return which nodes will be asked for in [as_of, as_of + window).

    Args:
        history: the log; what it holds at or after ``as_of`` is not looked at.
        as_of_s: on the log's clock.
        window_s: how far ahead.
        seed: which rows are drawn where there are too many.
    """
    nodes, features = features_at(history, as_of_s, window_s)
    scores = {Basis.COUNT: by_count(features)}
    samples = samples_before(history, as_of_s, window_s)
    backtests = _backtests(history, samples, seed)
    if backtests:
        scores |= _scores(history, ReuseModel.fit(samples, seed), nodes, features)
    return Prediction(nodes, features, scores, backtests)


def _backtests(history: History, samples: list[Sample], seed: int) -> list[tuple[Sample, dict[Basis, Floats]]]:
    """Judge the newest windows, a few at a time, by a model of those that ended before the first of them began."""
    found: list[tuple[Sample, dict[Basis, Floats]]] = []
    for fold in range(_FOLDS if len(samples) >= _LEAST_MOMENTS else 0):
        judged = samples[fold * _HELD_BACK : (fold + 1) * _HELD_BACK]
        older = samples[(fold + 1) * _HELD_BACK + _OVERLAP :]
        if not _can_learn(older):
            break
        model = ReuseModel.fit(older, seed)
        found += [(sample, _scores(history, model, sample.nodes, sample.features)) for sample in judged]
    return found


def _can_learn(samples: Sequence[Sample]) -> bool:
    used = sum(float(sample.is_used.sum()) for sample in samples)
    return _LEAST_REUSED <= used <= sum(len(sample.nodes) for sample in samples) - _LEAST_REUSED


def _scores(history: History, model: ReuseModel, nodes: Ints, features: Floats) -> dict[Basis, Floats]:
    return {
        Basis.COUNT: by_count(features),
        Basis.RECENCY: model.recency.chance(features),
        Basis.MODEL: model.chance(history, nodes, features),
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
