"""The Gaussian process of spec 2.3: Matérn 5/2 on scikit-learn, one length scale a feature, ten restarts.

A few dozen trials cannot tell ten length scales apart by likelihood alone: it takes chance for structure. So kernels
are fitted with a prior, under which a parameter acts over about the whole of its range unless the trials say otherwise.
How targets are scaled before fitting lives here too; what is proposed next does not.
"""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LENGTH_SCALES = (1e-2, 1e2)
NOISE = 1e-6
RESTARTS = 10
_VARIANCES = (1e-2, 1e2)
_PRIOR_DEVIATION = 1.0
"""Of the logarithms of variance and length scales, around 0: length scales are shares of a parameter's range."""


def around_median(targets: Floats) -> Floats:
    """Return targets squashed around their median: linear in the middle half, like a logarithm in the tails.

    Their order stays; a heavy tail of bad trials no longer takes the whole variance.
    """
    low, middle, high = np.quantile(targets, [0.25, 0.5, 0.75])
    spread = max(float(high - low), float(np.abs(targets - middle).mean()), 1e-12)
    squashed: Floats = np.arcsinh((targets - middle) / spread)
    return squashed


def around_zero(targets: Floats) -> Floats:
    """Return targets squashed so that signs stay: linear near 0, like a logarithm far from it."""
    squashed: Floats = np.arcsinh(targets / max(float(np.abs(targets).mean()), 1e-12))
    return squashed


class Process:
    """A fitted process; predicts mean and standard deviation of the targets it was given."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def kernel(self) -> Any:
        """The kernel with its fitted figures."""
        return self._model.kernel_

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Return means and standard deviations, each of shape (points,)."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tiny negative variances at observed points are set to 0
            mean, deviation = self._model.predict(features, return_std=True)
        return mean, np.maximum(deviation, 1e-9)


def fit_kernel(features: Floats, targets: Floats, seed: int) -> Any:
    """Return the most probable kernel given the targets, found from eleven starts."""
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    kernel = ConstantKernel(1.0, _VARIANCES) * Matern(np.ones(features.shape[1]), LENGTH_SCALES, nu=2.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length scale at its bound says that the dimension does not matter
        return _regressor(kernel, seed, restarts=RESTARTS, optimizer=_most_probable).fit(features, targets).kernel_


def condition(kernel: Any, features: Floats, targets: Floats) -> Process:
    """Return the process with a given kernel, given all targets."""
    return Process(_regressor(kernel, 0).fit(features, targets))


def _most_probable(loss: Any, start: Floats, bounds: Floats) -> tuple[Floats, float]:
    """Minimise the negative log-likelihood over logarithms of the kernel's figures, plus that of their prior."""
    from scipy.optimize import minimize

    def penalised(logs: Floats) -> tuple[float, Floats]:
        value, gradient = loss(logs, eval_gradient=True)
        return value + 0.5 * float(logs @ logs) / _PRIOR_DEVIATION**2, gradient + logs / _PRIOR_DEVIATION**2

    found = minimize(penalised, start, jac=True, bounds=bounds, method="L-BFGS-B")
    return found.x, float(found.fun)


def _regressor(kernel: Any, seed: int, *, restarts: int = 0, optimizer: Any = None) -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    return GaussianProcessRegressor(
        kernel,
        alpha=NOISE,
        optimizer=optimizer,
        n_restarts_optimizer=restarts,
        normalize_y=True,
        random_state=seed,
    )
