"""KV prefixes: which part of the prefix tree each replica is to hold, as items that are whole paths.

Every replica of a model gets the hottest set that fits into it, since a router that deals requests in turn brings each
prefix to each replica. An item is a maximal chosen chain; its blocks warm all shorter prefixes on the way.
"""

from typing import Any

import pyarrow as pa

from warmup_tasks.identity import digest, prompt_digest
from warmup_tasks.items import Arm, ItemKind, Payload, Reason, ReplicaState, item_id
from warmup_tasks.planning.allocation import NO_NODE, allocate
from warmup_tasks.planning.cost import capacity_blocks, prefill_ms, request_ms
from warmup_tasks.planning.drafts import Draft, PlanDraft, warming_order

Row = dict[str, Any]
_LENGTH_CAPS = (1.0, 0.9, 0.75, 0.5)


class PrefixPlanner:
    """Drafts the KV prefixes of one plan.

    Args:
        plan: receives drafts, payloads and capacity figures.
        nodes: rows of ``demand`` table ``nodes``, parents first.
        paths: ``demand`` table ``paths``.
        adapter_ids: (replica, adapter) → item id of the adapters that the plan loads.
    """

    def __init__(
        self, plan: PlanDraft, nodes: list[Row], paths: pa.Table, adapter_ids: dict[tuple[str, str], str]
    ) -> None:
        self._plan, self._nodes, self._adapter_ids = plan, nodes, adapter_ids
        self._token_ids = {path: row for row, path in enumerate(paths["path"].to_pylist())}
        self._tokens_column = paths["token_ids"]
        self._payload_of: dict[tuple[int, int, int], Payload] = {}

    def plan_replica(self, state: ReplicaState) -> None:
        """Draft the items of one replica, and refused ones up to ``top_k``, and note its capacity and use."""
        by_node = {row["node"]: row for row in self._nodes if row["model"] == state.model}
        open_nodes = [row for row in by_node.values() if self._has_adapter(state, row)]
        ends, blocks, capacity = self._allocate(state, open_nodes)
        taken = {row["node"]: end for row, end in zip(open_nodes, ends, strict=True) if end}
        warm = {node for node in taken if self._plan.arm(by_node[node]["subtree_root"]) is Arm.WARM}
        drafts = [self._draft(state, by_node, node, taken[node]) for node in _leaves(by_node, warm)]
        drafts.sort(key=lambda pair: warming_order(pair[0]))
        self._count_unique(state, by_node, taken, drafts, set())
        held_out = [self._draft(state, by_node, node, taken[node]) for node in _leaves(by_node, taken.keys() - warm)]
        for draft, _ in held_out:
            draft.reason = Reason.HOLDOUT
        self._count_unique(state, by_node, taken, held_out, set(warm))
        self._plan.drafts += [draft for draft, _ in (*drafts, *held_out)]
        for payload in self._payload_of.values():
            self._plan.add_payload(payload)
        self._refuse_rest(state, by_node, taken)
        used = sum((taken[n] - by_node[n]["start_tokens"]) // state.block_size for n in warm)
        gain = sum(self._gain_ms(state, by_node[n], taken[n] - by_node[n]["start_tokens"]) for n in warm)
        self._plan.facts.setdefault("capacity", {})[state.replica] = {
            "capacity_blocks": state.capacity_tokens // state.block_size,
            "plan_blocks": capacity,
            "chosen_blocks": used,
            "held_out_blocks": blocks - used,
            "expected_gain_ms": round(gain, 3),
        }

    def _allocate(self, state: ReplicaState, nodes: list[Row]) -> tuple[list[int], int, int]:
        """Return the chosen end (in tokens, 0: not chosen) of each node, the blocks chosen, and the blocks there are.

        The longest prompt decides how much room must stay free, so leaving out the longest ones may gain more.
        """
        best: tuple[float, list[int], int, int] = (-1.0, [0] * len(nodes), 0, capacity_blocks(state, 0, self._plan.run))
        lengths = sorted({row["end_tokens"] for row in nodes})
        for cap in sorted({lengths[int(share * (len(lengths) - 1))] for share in _LENGTH_CAPS} if lengths else ()):
            fitting = [index for index, row in enumerate(nodes) if row["end_tokens"] <= cap]
            capacity = capacity_blocks(state, cap + 1, self._plan.run)
            ends, blocks = self._fill(state, [nodes[index] for index in fitting], capacity)
            rows = [(nodes[index], end) for index, end in zip(fitting, ends, strict=True) if end]
            gain = sum(self._gain_ms(state, row, end - row["start_tokens"]) for row, end in rows)
            if gain >= best[0]:
                every = [0] * len(nodes)
                for index, end in zip(fitting, ends, strict=True):
                    every[index] = end
                best = (gain, every, blocks, capacity)
        return best[1:]

    def _fill(self, state: ReplicaState, nodes: list[Row], capacity: int) -> tuple[list[int], int]:
        if not nodes:
            return [], 0
        step = nodes[0]["step_tokens"]
        position = {row["node"]: index for index, row in enumerate(nodes)}
        steps = [(row["end_tokens"] - row["start_tokens"]) // step for row in nodes]
        taken = allocate(
            [position.get(row["parent"], NO_NODE) for row in nodes],
            steps,
            [self._gain_ms(state, row, row["end_tokens"] - row["start_tokens"]) for row in nodes],
            capacity // (step // state.block_size),
        )
        ends = [row["start_tokens"] + part * step if part else 0 for row, part in zip(nodes, taken, strict=True)]
        return ends, sum(taken) * (step // state.block_size)

    def _gain_ms(self, state: ReplicaState, row: Row, tokens: int) -> float:
        return float(row["expected_uses"]) * self._plan.replica_share(state.model) * prefill_ms(state, tokens)

    def _has_adapter(self, state: ReplicaState, row: Row) -> bool:
        return row["adapter"] is None or (state.replica, row["adapter"]) in self._adapter_ids

    def _draft(self, state: ReplicaState, by_node: dict[int, Row], node: int, end: int) -> tuple[Draft, int]:
        """Return the item that ends at ``end`` in a node, and the node."""
        row, plan = by_node[node], self._plan
        payload = self._payload(row, end)
        uses = row["expected_uses"] * plan.replica_share(state.model)
        identity = plan.identity(row["model"], row["adapter"])
        loads = [self._adapter_ids[key] for key in [(state.replica, row["adapter"])] if key in self._adapter_ids]
        return Draft(
            kind=ItemKind.KV_PREFIX,
            item_id=item_id(ItemKind.KV_PREFIX, row["tenant"], row["cache_salt"], identity, payload.prompt_sha256),
            profile=state.profile,
            replica=state.replica,
            tenant=row["tenant"],
            cache_salt=row["cache_salt"],
            model=row["model"],
            adapter=row["adapter"],
            identity_digest=identity,
            policy=row["policy"],
            prompt_tokens=end + 1,
            heat=row["heat_slow"],
            expected_uses=uses,
            expected_gain_ms=uses * prefill_ms(state, end),
            expected_cost_ms=request_ms(state, end),
            payload_sha256=payload.payload_sha256,
            depends_on=loads,
            subtree_root=row["subtree_root"],
        ), node

    def _payload(self, row: Row, end: int) -> Payload:
        """Return the path's tokens and one more: only then can all its blocks be hit."""
        key = (row["path"], end, row["step_tokens"])
        if key not in self._payload_of:
            ids = self._tokens_column[self._token_ids[row["path"]]].values[: end + 1].to_pylist()
            sha = prompt_digest(ids)
            self._payload_of[key] = Payload(
                payload_sha256=digest({"prompt": sha, "cached": end}),
                prompt_sha256=sha,
                token_ids=ids,
                body_json=None,
                expected_cached_tokens=end,
            )
        return self._payload_of[key]

    def _count_unique(
        self,
        state: ReplicaState,
        by_node: dict[int, Row],
        taken: dict[int, int],
        drafts: list[tuple[Draft, int]],
        covered: set[int],
    ) -> None:
        """Give each item the tokens that no item before it in the order, and nothing covered, has computed already."""
        for draft, node in drafts:
            while node in by_node and node not in covered:
                covered.add(node)
                draft.unique_tokens += taken[node] - by_node[node]["start_tokens"]
                node = by_node[node]["parent"]
            draft.expected_cost_ms = request_ms(state, draft.unique_tokens)

    def _refuse_rest(self, state: ReplicaState, by_node: dict[int, Row], taken: dict[int, int]) -> None:
        left = _leaves(by_node, by_node.keys() - taken.keys())
        left.sort(key=lambda node: (-by_node[node]["expected_uses"], by_node[node]["name"]))
        shown = left[: self._plan.run.parameters.top_k]
        for node in shown:
            draft, _ = self._draft(state, by_node, node, by_node[node]["end_tokens"])
            draft.payload_sha256, draft.depends_on, draft.reason = None, [], Reason.OVER_CAPACITY
            self._plan.drafts.append(draft)
        self._plan.not_shown[ItemKind.KV_PREFIX, Reason.OVER_CAPACITY] += len(left) - len(shown)


def _leaves(by_node: dict[int, Row], nodes: Any) -> list[int]:
    inner = {by_node[node]["parent"] for node in nodes}
    return sorted(node for node in nodes if node not in inner)
