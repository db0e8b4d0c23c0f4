"""A search space as numbers: what is proposed, what a kernel sees, what a trial is run with.

*Genes* are one coordinate in [0, 1] a dimension, where proposals are made. *Features* are what the kernel sees:
integers and steps at the values that a trial would really take, logarithmic dimensions on their logarithm, each choice
of a categorical dimension a coordinate of its own. So two genes that lead to one trial are one point for the process.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_APART = math.sqrt(0.5)
"""Scales one-hot coordinates so that two choices lie 1 apart, as far as the ends of a numeric dimension."""


class Encoding:
    """Translates between parameters, genes and features of one search space.

    Args:
        space: name → Optuna distribution, none of them with a single value.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        from optuna.distributions import CategoricalDistribution

        self.space = dict(sorted(space.items()))
        self._choices = [
            len(one.choices) if isinstance(one, CategoricalDistribution) else 0 for one in self.space.values()
        ]

    @property
    def dimensions(self) -> int:
        """Number of genes."""
        return len(self.space)

    def feature_slices(self) -> dict[str, slice]:
        """Return which features each dimension has."""
        widths = [max(1, choices) for choices in self._choices]
        stops = np.cumsum(widths)
        return {
            name: slice(int(stop) - width, int(stop))
            for name, stop, width in zip(self.space, stops, widths, strict=True)
        }

    def genes_of(self, params: Mapping[str, Any]) -> Floats:
        """Return the genes of a trial's parameters, shape (dimensions,)."""
        genes = [
            (one.choices.index(params[name]) + 0.5) / choices if choices else _gene(one, params[name])
            for (name, one), choices in zip(self.space.items(), self._choices, strict=True)
        ]
        return np.asarray(genes, np.float64)

    def params_of(self, genes: Floats) -> dict[str, Any]:
        """Return the parameters of one point."""
        return {
            name: one.choices[_cell(gene, choices)] if choices else _value(one, float(gene))
            for (name, one), choices, gene in zip(self.space.items(), self._choices, genes, strict=True)
        }

    def covers(self, params: Mapping[str, Any]) -> bool:
        """Say whether parameters have every dimension, with a value that this space has."""
        return all(
            name in params and (params[name] in one.choices if choices else one.low <= params[name] <= one.high)
            for (name, one), choices in zip(self.space.items(), self._choices, strict=True)
        )

    def key(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what two trials with the same parameters share."""
        return tuple(params[name] for name in self.space)

    def features(self, genes: Floats) -> Floats:
        """Return what the kernel sees of many points, shape (points, features)."""
        columns = []
        for place, (one, choices) in enumerate(zip(self.space.values(), self._choices, strict=True)):
            column = genes[:, place]
            if choices:
                cells = np.minimum((column * choices).astype(np.int64), choices - 1)
                columns.append(np.eye(choices)[cells] * _APART)
            else:
                columns.append(_rounded(one, column)[:, None])
        return np.hstack(columns)


def _cell(gene: float, cells: int) -> int:
    return min(cells - 1, int(gene * cells))


def _ends(one: Any) -> tuple[float, float]:
    """Return the ends of a numeric dimension on the scale that genes are linear on; integers get half a step more."""
    step = getattr(one, "step", None)
    half = 0.5 * step if step is not None else 0.0
    low, high = one.low - half, one.high + half
    return (math.log(low), math.log(high)) if one.log else (low, high)


def _value(one: Any, gene: float) -> int | float:
    from optuna.distributions import IntDistribution

    low, high = _ends(one)
    at = low + gene * (high - low)
    value = math.exp(at) if one.log else at
    if one.step is not None:
        steps = round((value - one.low) / one.step)
        value = one.low + min(max(0, steps), round((one.high - one.low) / one.step)) * one.step
    value = min(max(value, one.low), one.high)
    return int(value) if isinstance(one, IntDistribution) else float(value)


def _gene(one: Any, value: float) -> float:
    low, high = _ends(one)
    at = math.log(value) if one.log else value
    return min(1.0, max(0.0, (at - low) / (high - low)))


def _rounded(one: Any, genes: Floats) -> Floats:
    """Return genes moved to the values that a trial would take."""
    if one.step is None:
        return genes
    low, high = _ends(one)
    at = low + genes * (high - low)
    values = np.exp(at) if one.log else at
    steps = np.clip(np.rint((values - one.low) / one.step), 0, round((one.high - one.low) / one.step))
    values = one.low + steps * one.step
    moved: Floats = ((np.log(values) if one.log else values) - low) / (high - low)
    return moved
