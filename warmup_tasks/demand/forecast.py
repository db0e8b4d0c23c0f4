"""Which of two forecasts a traffic class gets: the count carried forward (static) or the recent one (dynamic).

The forecasts themselves are sums in ``sql/demand/sequences.sql``; here the strategy parameter is applied, and
*adaptive* decides by which forecast was closer on the newest part of the lookback (spec 4.2, 4.4).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from warmup_tasks.demand.asked import Asked
from warmup_tasks.demand.prefix_tree import Floats, PrefixTree
from warmup_tasks.parameters import PrefetchStrategy


class ClassPolicy(NamedTuple):
    """The policy of one traffic class. The errors are in tokens of wrongly forecast prefix uses; None: not compared."""

    traffic_class: tuple[str, str, str]
    policy: str
    static_error_tokens: float | None
    dynamic_error_tokens: float | None


def choose_policies(
    prompts: Sequence[Asked], trees: dict[str, tuple[PrefixTree, list[int]]], strategy: PrefetchStrategy
) -> list[ClassPolicy]:
    """Set each prompt's policy and return what was decided per traffic class.

    Args:
        prompts: all of them.
        trees: model → (its tree, the indices of ``prompts`` in it, in the tree's order of sequences).
        strategy: static and dynamic rule everywhere; adaptive compares, and takes static on a tie.
    """
    decided = {}
    for traffic_class in sorted({asked.traffic_class for asked in prompts}):
        if strategy is not PrefetchStrategy.ADAPTIVE:
            decided[traffic_class] = ClassPolicy(traffic_class, str(strategy), None, None)
            continue
        static, dynamic = _errors(prompts, trees.get(traffic_class[0]), traffic_class)
        policy = "dynamic" if dynamic < static else "static"
        decided[traffic_class] = ClassPolicy(traffic_class, policy, round(static, 3), round(dynamic, 3))
    for asked in prompts:
        asked.policy = decided[asked.traffic_class].policy
    return list(decided.values())


def _errors(
    prompts: Sequence[Asked], tree: tuple[PrefixTree, list[int]] | None, traffic_class: tuple[str, str, str]
) -> tuple[float, float]:
    if tree is None or not len(tree[0]):
        return 0.0, 0.0
    nodes = tree[0].sums(_backtests([prompts[index] for index in tree[1]], traffic_class))
    weights = tree[0].end_tokens - tree[0].start_tokens
    static, dynamic = (float((weights * np.abs(nodes[:, column] - nodes[:, 2])).sum()) for column in (0, 1))
    return static, dynamic


def _backtests(prompts: Sequence[Asked], traffic_class: tuple[str, str, str]) -> Floats:
    values = np.zeros((len(prompts), 3))
    for row, asked in enumerate(prompts):
        if asked.traffic_class == traffic_class:
            values[row] = (asked.back_static_uses, asked.back_dynamic_uses, asked.back_actual_uses)
    return values
