"""The prefix trees of all models as rows: sums per node, tokens of the deepest nodes, the prompts' subtree roots."""

from collections import Counter
from typing import Any

import numpy as np

from warmup_tasks.demand.asked import Asked
from warmup_tasks.demand.candidates import Candidates, choose_candidates
from warmup_tasks.demand.prefix_tree import NO_NODE, Floats, PrefixTree
from warmup_tasks.demand.reuse.features import NAMES as FEATURES
from warmup_tasks.demand.reuse_forecast import NodeReuse
from warmup_tasks.runs import Run

Row = dict[str, Any]
LIKELY = 0.5
"""From this chance on a node is a candidate however rare it was: most turns of a session are asked for once."""


class Forest:
    """All models' trees as rows of ``tables.NODES`` and ``PATHS``; each prompt learns its subtree root on the way.

    Attributes:
        nodes: the nodes that a plan may choose, parents first.
        paths: token ids of the deepest ones.
        reuse: what the reuse predictor says of them, where it is believed.
        dropped: how many nodes fell to which rule.
    """

    def __init__(
        self,
        run: Run,
        prompts: list[Asked],
        trees: dict[str, tuple[PrefixTree, list[int]]],
        steps: dict[str, int],
        reuse: dict[str, NodeReuse],
    ) -> None:
        self.nodes: list[Row] = []
        self.paths: list[Row] = []
        self.reuse: list[Row] = []
        self.dropped: Counter[str] = Counter()
        for model, (tree, indices) in trees.items():
            if len(tree):
                self._add(run, [prompts[index] for index in indices], tree, steps[model], reuse.get(model))

    def _add(self, run: Run, prompts: list[Asked], tree: PrefixTree, step_tokens: int, reuse: NodeReuse | None) -> None:
        columns = ("uses", "heat_fast", "heat_slow", "expected_uses", "dynamic_uses")
        values = np.asarray([[float(getattr(asked, name)) for name in columns] for asked in prompts])
        sums = tree.sums(values.reshape(len(prompts), len(columns)))
        uses = sums[:, 0]
        if reuse is not None:
            # the chance of being asked for at all, times how often it is then
            sums[:, 3] = reuse.chance * np.maximum(1.0, sums[:, 4])
            uses = np.where(reuse.chance >= LIKELY, np.maximum(uses, run.policy.min_uses), uses)
        chosen = choose_candidates(
            tree,
            uses,
            sums[:, 3],
            min_uses=run.policy.min_uses,
            prefetch_depth=run.parameters.prefetch_depth,
            top_k=run.parameters.top_k,
        )
        self.dropped.update(chosen.dropped)
        tops = _tops(tree)
        for asked, leaf in zip(prompts, tree.leaf, strict=True):
            if leaf != NO_NODE:
                asked.subtree_root = chosen.roots[leaf]
                asked.shared_prefix = chosen.roots[leaf] or tree.name[tops[leaf]]
        self._rows(prompts, tree, chosen, sums, step_tokens, reuse)

    def _rows(
        self,
        prompts: list[Asked],
        tree: PrefixTree,
        chosen: Candidates,
        sums: Floats,
        step_tokens: int,
        reuse: NodeReuse | None,
    ) -> None:
        ids = {name: index for index, name in enumerate(sorted({s for a in prompts for s in a.sessions or ()}))}
        sessions = tree.unions([[ids[s] for s in asked.sessions or ()] for asked in prompts])
        tenant_ids = {name: index for index, name in enumerate(sorted({a.tenant or "" for a in prompts}))}
        tenants = tree.unions([[tenant_ids[asked.tenant or ""]] for asked in prompts])
        last_seen = [max(times) for times in tree.unions([[_micros(asked)] for asked in prompts])]
        offset, path_of = len(self.nodes), self._paths(prompts, tree, chosen.nodes)
        row_of = {node: offset + index for index, node in enumerate(chosen.nodes)}
        for node in chosen.nodes:
            example = prompts[tree.example[node]]
            self.nodes.append(
                {
                    "node": row_of[node],
                    "parent": row_of.get(int(tree.parent[node]), NO_NODE),
                    "path": path_of[node],
                    "tenant": example.tenant if len(tenants[node]) == 1 else None,
                    "model": example.model,
                    "adapter": example.adapter,
                    "cache_salt": example.cache_salt,
                    "subtree_root": chosen.roots[node],
                    "name": tree.name[node],
                    "level": int(chosen.levels[node]),
                    "start_tokens": int(tree.start_tokens[node]),
                    "end_tokens": int(tree.end_tokens[node]),
                    "step_tokens": step_tokens,
                    "uses": round(sums[node, 0]),
                    "sessions": len(sessions[node]),
                    "last_seen": last_seen[node],
                    "heat_fast": float(sums[node, 1]),
                    "heat_slow": float(sums[node, 2]),
                    "expected_uses": float(sums[node, 3]),
                    "policy": example.policy if reuse is None else str(reuse.basis),
                }
            )
            if reuse is not None:
                values = [None if np.isnan(value) else value for value in reuse.features[node].tolist()]
                known = dict(zip(FEATURES, values, strict=True))
                self.reuse.append({"node": row_of[node], "chance": float(reuse.chance[node]), **known})

    def _paths(self, prompts: list[Asked], tree: PrefixTree, nodes: list[int]) -> dict[int, int]:
        path_of: dict[int, int] = {}
        for node in reversed(nodes):
            if node not in path_of:
                path_of[node] = len(self.paths)
                ids = prompts[tree.example[node]].token_ids[: tree.end_tokens[node] + 1]
                self.paths.append({"path": path_of[node], "token_ids": ids})
            path_of.setdefault(int(tree.parent[node]), path_of[node])
        return path_of


def _micros(asked: Asked) -> int:
    return round(asked.last_seen.timestamp() * 1e6)


def _tops(tree: PrefixTree) -> list[int]:
    tops: list[int] = []
    for node, above in enumerate(tree.parent):
        tops.append(node if above == NO_NODE else tops[above])
    return tops
