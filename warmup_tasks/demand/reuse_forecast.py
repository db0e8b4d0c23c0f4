"""The reuse predictor on the night's own tables: which nodes of a prefix tree the time after as_of will ask for.

It answers where the model, or recency alone, was best on the log's own past; where counts were, or the log is too short
to learn from, the estimates of ``forecast.py`` stand. Nothing is chosen here.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from warmup_tasks.demand.asked import Asked
from warmup_tasks.demand.prefix_tree import NO_NODE, Floats, PrefixTree
from warmup_tasks.demand.reuse import Basis, History, Prediction, predict
from warmup_tasks.demand.window import Window
from warmup_tasks.items import ReplicaState
from warmup_tasks.parameters import PrefetchStrategy
from warmup_tasks.runs import Run

Row = dict[str, Any]
_KEYS = (
    "tenant",
    "model",
    "adapter",
    "cache_salt",
    "request_type",
    "prompt_sha256",
    "body_sha256",
    "is_truncated",
)
_WINDOWS_OBSERVED = 6
_LEAST_WINDOW_S = 60.0
_NOT_JUDGED: Row = {"basis": "log too short", "saved_shares": {}, "windows_judged": 0, "calibration": None}


class NodeReuse(NamedTuple):
    """What the predictor says of each node of one tree: shape (nodes,) and (nodes, len(reuse.features.NAMES)).

    ``chance`` is that of being asked for in the window, over a run as a mean; the features are those of its beginning;
    ``basis`` is who said so.
    """

    chance: Floats
    features: Floats
    basis: Basis


def forecast_reuse(
    run: Run,
    window: Window,
    states: Sequence[ReplicaState],
    prompts: Sequence[Asked],
    trees: dict[str, tuple[PrefixTree, list[int]]],
    step_tokens: dict[str, int],
) -> tuple[dict[str, NodeReuse], dict[str, Row]]:
    """Return, by model, what the predictor says where it is to be believed, and how it was judged.

    Args:
        run: as_of, horizon, seed, strategy; ``static`` predicts nothing.
        window: the lookback's requests.
        states: the survey; the smallest replica's budget is the one that the predictor is judged at.
        prompts: all of them.
        trees: model → (its tree, the indices of ``prompts`` in it).
        step_tokens: smallest prefix step of a model.
    """
    found: dict[str, NodeReuse] = {}
    accounts: dict[str, Row] = {}
    if run.parameters.prefetch_strategy is PrefetchStrategy.STATIC:
        return found, accounts
    window_s = min(float(run.policy.horizon_s), window.observed_s / _WINDOWS_OBSERVED)
    rows = list(zip(*window.requests.select(_KEYS).to_pydict().values(), strict=True))
    times_s = np.asarray(window.requests["time"].cast("int64").to_numpy(), np.float64) / 1e6
    for model, (tree, indices) in trees.items():
        if window_s < _LEAST_WINDOW_S or not len(tree):
            accounts[model] = _NOT_JUDGED | {"window_s": window_s}
            continue
        history = _history(rows, times_s, prompts, tree, indices, step_tokens[model])
        budget = min(s.capacity_tokens for s in states if s.model == model) * run.parameters.budget_share
        prediction = predict(history, run.as_of.timestamp(), window_s, seed=run.request.seed)
        shares = {str(name): round(share, 4) for name, share in prediction.saved_shares(budget).items()}
        basis = prediction.basis(budget)
        accounts[model] = {
            "basis": str(basis) if shares else "log too short",
            "window_s": window_s,
            "saved_shares": shares,
            "windows_judged": len(prediction.backtests),
            "calibration": prediction.calibration(),
        }
        if basis is not Basis.COUNT:
            found[model] = _by_tree_node(history, tree, prediction, basis)
    return found, accounts


def _history(
    rows: list[tuple[Any, ...]],
    times_s: Floats,
    prompts: Sequence[Asked],
    tree: PrefixTree,
    indices: list[int],
    step_tokens: int,
) -> History:
    place = {_key(prompts[index]): number for number, index in enumerate(indices)}
    leaves = [tree.leaf[place[row]] if row in place else NO_NODE for row in rows]
    is_here = np.asarray(leaves) != NO_NODE
    tenants = {name: number for number, name in enumerate(sorted({row[0] or "" for row in rows}))}
    return History.of_tree(
        tree.parent,
        tree.start_tokens,
        tree.end_tokens,
        np.asarray(leaves, np.int64)[is_here],
        times_s[is_here],
        step_tokens=step_tokens,
        tenants=np.asarray([tenants[row[0] or ""] for row in rows], np.int64)[is_here],
    )


def _key(asked: Asked) -> tuple[Any, ...]:
    return tuple(getattr(asked, name) for name in _KEYS)


def _by_tree_node(history: History, tree: PrefixTree, prediction: Prediction, basis: Basis) -> NodeReuse:
    chance, features = prediction.by_node(history, basis), prediction.features
    tokens, nodes = history.tokens.astype(np.float64), len(tree)
    whole = np.bincount(history.origin, tokens, minlength=nodes)
    mean = np.bincount(history.origin, tokens * chance, minlength=nodes) / whole
    for node, above in enumerate(tree.parent.tolist()):
        if above != NO_NODE:  # true but for rounding
            mean[node] = min(mean[node], mean[above])
    first = np.full((nodes, features.shape[1]), np.nan)
    first[history.origin[prediction.nodes][::-1]] = features[::-1]
    return NodeReuse(mean, first, basis)
