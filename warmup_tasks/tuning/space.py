"""The search space, read from the fields of ``GoldenParameters``: bounds, type and choices stand only there."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.parameters import GoldenParameters

JUDGED_BY_REPLAY = (
    "trigger_threshold_ms",
    "warmup_window_s",
    "prefetch_depth",
    "prefetch_strategy",
    "heat_tau_fast_s",
    "top_k",
    "budget_share",
    "concurrency",
)
"""What a simulated passive warm-up obeys. The other parameters change nothing there: nothing can be said of them."""

LOG_FROM_RATIO = 50.0
"""A range whose ends lie this far apart is searched on its logarithm."""


def search_space(names: Iterable[str] = JUDGED_BY_REPLAY) -> dict[str, Any]:
    """Return name → Optuna distribution.

    Raises:
        ConfigurationError: a name is no parameter, or its field has no bounds to search between.
    """
    return {name: _distribution(name) for name in names}


def _distribution(name: str) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    field = GoldenParameters.model_fields.get(name)
    if field is None:
        raise ConfigurationError(f"tuning: {name} is no parameter; known: {', '.join(GoldenParameters.model_fields)}")
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return CategoricalDistribution([str(choice) for choice in kind])
    low, high = _bound(field.metadata, "ge"), _bound(field.metadata, "le")
    if kind not in (int, float) or low is None or high is None:
        raise ConfigurationError(f"tuning: {name} has no range that can be searched; leave it out")
    is_log = low > 0 and high / low >= LOG_FROM_RATIO
    if kind is int:
        return IntDistribution(int(low), int(high), log=is_log)
    return FloatDistribution(float(low), float(high), log=is_log)


def _bound(metadata: list[Any], name: str) -> float | None:
    return next((float(getattr(one, name)) for one in metadata if hasattr(one, name)), None)
