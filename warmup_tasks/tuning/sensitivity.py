"""What each parameter mattered in a study, told by the process that was fitted to its trials.

The *total effect* of a parameter is the share of the objective's variance that vanishes when it is held (Jansen's
estimator): effects together with others included, so the shares may sum to more than 1. A *curve* is the mean
prediction over one parameter, the others being those of the trials. Data for plots; nothing is drawn here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmup_tasks.tuning import process
from warmup_tasks.tuning.encoding import Encoding
from warmup_tasks.tuning.study import Trial

LEAST_TRIALS = 10
_SAMPLES = 1024
_CURVE_POINTS = 21


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The predicted objective at one value of one parameter; ``deviation`` is what the process does not know."""

    parameter: str
    value: Any
    objective: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Total effects by parameter, greatest first, and a curve for each."""

    effects: Mapping[str, float]
    curves: Sequence[CurvePoint]


def sensitivity(trials: Sequence[Trial], space: Mapping[str, Any], seed: int) -> Sensitivity:
    """Return what the parameters mattered; empty with fewer than ten judged trials."""
    from threadpoolctl import threadpool_limits

    judged = [trial for trial in trials if trial.value is not None and trial.params.keys() >= space.keys()]
    if len(judged) < LEAST_TRIALS:
        return Sensitivity({}, [])
    encoding = Encoding(space)
    genes = np.asarray([encoding.genes_of(trial.params) for trial in judged])
    values = np.asarray([trial.value for trial in judged], np.float64)
    features = encoding.features(genes)
    with threadpool_limits(1, "blas"):
        model = process.condition(process.fit_kernel(features, values, seed), features, values)
        effects = _effects(model, encoding, np.random.default_rng(seed))
        curves = [point for place in range(encoding.dimensions) for point in _curve(model, encoding, genes, place)]
    return Sensitivity(dict(sorted(effects.items(), key=lambda one: -one[1])), curves)


def _effects(model: process.Process, encoding: Encoding, random: np.random.Generator) -> dict[str, float]:
    base = random.random((_SAMPLES, encoding.dimensions))
    other = random.random((_SAMPLES, encoding.dimensions))
    told, _ = model.predict(encoding.features(base))
    variance = max(float(np.var(told)), 1e-12)
    effects = {}
    for place, name in enumerate(encoding.space):
        moved = base.copy()
        moved[:, place] = other[:, place]
        changed, _ = model.predict(encoding.features(moved))
        effects[name] = float(np.mean((told - changed) ** 2) / 2 / variance)
    return effects


def _curve(model: process.Process, encoding: Encoding, genes: process.Floats, place: int) -> list[CurvePoint]:
    name = list(encoding.space)[place]
    found: dict[Any, CurvePoint] = {}
    for gene in (np.arange(_CURVE_POINTS) + 0.5) / _CURVE_POINTS:
        moved = genes.copy()
        moved[:, place] = gene
        mean, deviation = model.predict(encoding.features(moved))
        value = encoding.params_of(moved[0])[name]
        found.setdefault(value, CurvePoint(name, value, float(mean.mean()), float(deviation.mean())))
    return list(found.values())
