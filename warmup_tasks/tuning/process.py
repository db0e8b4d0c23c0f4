"""The Gaussian process of spec 2.3: Matérn 5/2 on scikit-learn, one length scale a feature, ten restarts.

Targets are squashed before fitting: a heavy tail of bad trials would otherwise take the whole variance. The order of
targets, which is all that a comparison needs, stays.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LENGTH_SCALES = (1e-2, 1e2)
NOISE = 1e-6
RESTARTS = 10
_VARIANCES = (1e-2, 1e2)


@dataclass(frozen=True, slots=True)
class Squash:
    """Maps targets so that the middle half stays linear and tails grow like a logarithm; strictly rising."""

    centre: float
    spread: float

    @classmethod
    def of(cls, targets: Floats, centre: float | None = None) -> "Squash":
        """Return the map for targets; ``centre`` fixes the point that becomes 0."""
        middle = float(np.median(targets)) if centre is None else centre
        low, high = np.quantile(targets, [0.25, 0.75])
        spread = float(max(high - low, np.abs(targets - middle).mean(), 1e-12))
        return cls(middle, spread)

    def __call__(self, targets: Floats) -> Floats:
        """Return the squashed targets."""
        squashed: Floats = np.arcsinh((targets - self.centre) / self.spread)
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
    """Return the kernel that explains the targets best, found from eleven starts."""
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    kernel = ConstantKernel(1.0, _VARIANCES) * Matern(np.ones(features.shape[1]), LENGTH_SCALES, nu=2.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length scale at its bound says that the dimension does not matter
        return _regressor(kernel, seed, restarts=RESTARTS).fit(features, targets).kernel_


def condition(kernel: Any, features: Floats, targets: Floats) -> Process:
    """Return the process with a given kernel, given all targets."""
    return Process(_regressor(kernel, 0, optimizer=None).fit(features, targets))


def _regressor(kernel: Any, seed: int, *, restarts: int = 0, optimizer: str | None = "fmin_l_bfgs_b") -> Any:
    from sklearn.gaussian_process import GaussianProcessRegressor

    return GaussianProcessRegressor(
        kernel,
        alpha=NOISE,
        optimizer=optimizer,
        n_restarts_optimizer=restarts,
        normalize_y=True,
        random_state=seed,
    )
