"""Expected improvement, and its constrained form: what trying a point promises, and where that is greatest.

Logarithms throughout: far from the best trial the improvement is too small for a float, its logarithm is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from warmup_tasks.tuning.encoding import Encoding
from warmup_tasks.tuning.process import Process

Floats = npt.NDArray[np.float64]

_SPREAD_POINTS = 1024
_NEAR_POINTS = 48
_ROUNDS = 5
_LEADERS = 6


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What is known of the objective (smaller is better) and of constraints (kept at 0 or below).

    Attributes:
        encoding: of the search space.
        objective: the process of the objective.
        best: the best objective among trials that keep all constraints, as the process sees it; None: there is none.
        constraints: a process for each constraint.
    """

    encoding: Encoding
    objective: Process
    best: float | None
    constraints: Sequence[Process] = ()

    def log_promise(self, genes: Floats) -> Floats:
        """Return log (expected improvement × probability that all constraints hold) of many points.

        Without any trial that keeps the constraints the probability alone counts.
        """
        features = self.encoding.features(genes)
        promise = np.zeros(len(genes))
        if self.best is not None:
            promise += _log_improvement(*self.objective.predict(features), self.best)
        for process in self.constraints:
            promise += _log_kept(*process.predict(features))
        return promise


def propose(
    surrogate: Surrogate, seen: Floats, is_taken: Callable[[Floats], bool], random: np.random.Generator
) -> Floats:
    """Return the genes of the point that promises most and was not tried yet.

    Args:
        surrogate: what is known.
        seen: genes of tried points, best first; the search also starts from them.
        is_taken: whether a point leads to a trial that was already run.
        random: decides which points are looked at.
    """
    dimensions = surrogate.encoding.dimensions
    starts = [_near(seen[:_LEADERS], 0.15, random), random.random((_SPREAD_POINTS, dimensions))]
    genes = np.vstack([part for part in starts if len(part)])
    promise = surrogate.log_promise(genes)
    for turn in range(_ROUNDS):
        leaders = genes[np.argsort(-promise, kind="stable")[:_LEADERS]]
        near = _near(leaders, 0.2 * 0.45**turn, random)
        genes, promise = np.vstack([genes, near]), np.concatenate([promise, surrogate.log_promise(near)])
    ordered = genes[np.argsort(-promise, kind="stable")]
    return next((point for point in ordered if not is_taken(point)), ordered[0])


def _near(points: Floats, scale: float, random: np.random.Generator) -> Floats:
    """Return points around each of ``points``: a few of their genes moved, or drawn anew."""
    centres = np.repeat(points, _NEAR_POINTS, axis=0)
    is_moved = random.random(centres.shape) < max(0.3, 1.5 / max(1, centres.shape[1]))
    is_redrawn = random.random(centres.shape) < 0.05
    moved = centres + is_moved * random.normal(0.0, scale, centres.shape)
    moved = np.where(is_redrawn, random.random(centres.shape), moved)
    reflected: Floats = np.clip(np.where(moved < 0, -moved, np.where(moved > 1, 2 - moved, moved)), 0.0, 1.0)
    return reflected


def _log_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Return log E[max(0, best - Y)] for Y normal."""
    from scipy.special import log_ndtr
    from scipy.stats import norm

    gap = (best - mean) / deviation
    near = norm.pdf(gap) + gap * np.exp(log_ndtr(gap))
    far = -0.5 * gap**2 - 0.5 * np.log(2 * np.pi) - 2 * np.log(np.maximum(1.0, -gap))
    with np.errstate(divide="ignore"):
        value: Floats = np.log(deviation) + np.where(gap > -5, np.log(np.maximum(near, 1e-300)), far)
    return value


def _log_kept(mean: Floats, deviation: Floats) -> Floats:
    """Return log P(Y <= 0) for Y normal."""
    from scipy.special import log_ndtr

    value: Floats = log_ndtr(-mean / deviation)
    return value
