"""An Optuna sampler on scikit-learn's Gaussian process: Matérn 5/2, (constrained) expected improvement, no torch.

Every proposal follows from the seed, the trial's number and the observations alone. So a resumed study goes on exactly
as if it had never been interrupted, and never repeats its start-up trials.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from optuna.samplers import BaseSampler  # noqa: TID253 - a sampler is a BaseSampler; study.py loads this when it runs
from threadpoolctl import threadpool_limits

from warmup_tasks.tuning import acquisition, process
from warmup_tasks.tuning.encoding import Encoding
from warmup_tasks.tuning.process import Floats, Process, around_median, around_zero

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

STARTUP_TRIALS = 12
_REFIT_GROWTH = 1.125
"""Kernels are fitted anew each time there are so many times as many observations; between, they are only updated."""


class GaussianProcessSampler(BaseSampler):  # type: ignore[misc]
    """Proposes the point with the greatest expected improvement, times the probability that constraints hold.

    Constraints are those that trials report with ``trial.set_constraint``; a value of 0 or below keeps one.

    Args:
        seed: same seed, same proposals for the same observations.
        space: dimensions that are proposed together from the first trial on; None: those that all trials share.
        startup_trials: observations before the process is asked; until then a low-discrepancy sequence covers it all.
    """

    def __init__(
        self, seed: int, space: "Mapping[str, BaseDistribution] | None" = None, startup_trials: int = STARTUP_TRIALS
    ) -> None:
        self._seed, self._space, self._startup_trials = seed, space, startup_trials
        self._kernels: dict[bytes, Any] = {}

    def infer_relative_search_space(self, study: "Study", trial: "FrozenTrial") -> "dict[str, BaseDistribution]":
        """Return the dimensions with more than one value."""
        from optuna.search_space import intersection_search_space

        space = self._space if self._space is not None else intersection_search_space(study.get_trials(deepcopy=False))
        return {name: one for name, one in space.items() if not one.single()}

    def sample_relative(
        self, study: "Study", trial: "FrozenTrial", search_space: "dict[str, BaseDistribution]"
    ) -> dict[str, Any]:
        """Return the proposal for a trial."""
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        space = Encoding(search_space)
        trials = _observed(study, space)
        if len(trials) < self._startup_trials:
            return space.params_of(self._startup_point(trial.number, space.dimensions))
        sign = -1.0 if study.direction.name == "MAXIMIZE" else 1.0
        values = np.asarray([sign * one.value for one in trials])
        genes = np.asarray([space.genes_of(one.params) for one in trials])
        limits = _constraints(trials)
        best_first = genes[np.lexsort((values, limits.clip(0).sum(axis=1)))]
        known = {space.key(one.params) for one in study.get_trials(deepcopy=False) if space.covers(one.params)}
        random = np.random.default_rng([self._seed, trial.number, 1])
        with threadpool_limits(1, "blas"):  # matrices of a hundred rows: threads cost more than they bring
            surrogate = self._surrogate(space, genes, values, limits)
            point = acquisition.propose(
                surrogate, best_first, lambda one: space.key(space.params_of(one)) in known, random
            )
        return space.params_of(point)

    def sample_independent(
        self, study: "Study", trial: "FrozenTrial", param_name: str, param_distribution: "BaseDistribution"
    ) -> Any:
        """Return a random value for a dimension that not all trials share."""
        self._raise_error_if_multi_objective(study)
        if param_distribution.single():
            return param_distribution.to_external_repr(param_distribution.to_internal_repr(_only(param_distribution)))
        random = np.random.default_rng([self._seed, trial.number, crc32(param_name.encode()), 2])
        space = Encoding({param_name: param_distribution})
        return space.params_of(random.random(1))[param_name]

    def _startup_point(self, number: int, dimensions: int) -> Floats:
        from scipy.stats import qmc

        sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng([self._seed, 3]))
        if number:
            sequence.fast_forward(number)
        point: Floats = sequence.random(1)[0]
        return point

    def _surrogate(self, space: Encoding, genes: Floats, values: Floats, limits: Floats) -> acquisition.Surrogate:
        features = space.features(genes)
        kept = around_median(values)[(limits <= 0).all(axis=1)]
        broken = [column for column in limits.T if (column > 0).any()]
        return acquisition.Surrogate(
            encoding=space,
            objective=self._process(features, values, around_median),
            best=float(kept.min()) if len(kept) else None,
            constraints=[self._process(features, column, around_zero) for column in broken],
        )

    def _process(self, features: Floats, targets: Floats, scaled: Callable[[Floats], Floats]) -> Process:
        """Return the process given all observations, with the kernel fitted to the first so many of them."""
        fitted = self._startup_trials
        while (following := max(fitted + 1, int(fitted * _REFIT_GROWTH))) <= len(targets):
            fitted = following
        first = targets[:fitted]
        name = features[:fitted].tobytes() + first.tobytes()
        if name not in self._kernels:
            self._kernels[name] = process.fit_kernel(features[:fitted], scaled(first), self._seed + fitted)
        return process.condition(self._kernels[name], features, scaled(targets))


def _only(distribution: Any) -> Any:
    return distribution.choices[0] if hasattr(distribution, "choices") else distribution.low


def _observed(study: "Study", space: Encoding) -> "list[FrozenTrial]":
    """Return finished trials with a finite value and all dimensions, in order of their numbers."""
    from optuna.trial import TrialState

    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [one for one in finished if np.isfinite(one.value) and space.covers(one.params)]


def _constraints(trials: "Sequence[FrozenTrial]") -> Floats:
    """Return constraint values, shape (trials, constraints); a trial that did not report one keeps it."""
    names = sorted({name for one in trials for name in one.constraints})
    rows = [[one.constraints.get(name, 0.0) for name in names] for one in trials]
    return np.asarray(rows, np.float64).reshape(len(trials), len(names))
