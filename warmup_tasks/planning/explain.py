"""Why an item stands in a plan, or why it does not: read from the plan and the demand of one run.

Nothing is decided anew, and no prompt is shown: numbers, names and reasons only.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from warmup_tasks.demand.reuse import Basis
from warmup_tasks.demand.reuse.features import NAMES
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import ItemKind, PlanRow, Reason, ReplicaState
from warmup_tasks.lake.schemas import from_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.planning.cost import prefill_ms

Row = dict[str, Any]
_PLACE = ("model", "adapter", "cache_salt", "subtree_root")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one item is warmed on one replica (None: the serving store), or why not.

    Attributes:
        row: what the plan says.
        lost_without_ms: prefill that the horizon is expected to spend more if this item alone were left out; what it
            shares with other chosen items stays warm without it. None: it is not chosen, or has no prefill of its own.
        gain_per_token_ms: expected gain of the item, by token of its own.
        weakest_chosen_ms: the smallest such gain among the chosen items of its kind on the replica.
        chance: of being asked for in the predicted window; None where no reuse was predicted.
        features: what it was predicted from, in s and tokens; empty where nothing was.
        account: who predicted for its model, and what everybody would have saved in the back-test.
    """

    row: PlanRow
    lost_without_ms: float | None
    gain_per_token_ms: float | None
    weakest_chosen_ms: float | None
    chance: float | None
    features: dict[str, float]
    account: Row

    def lines(self) -> list[str]:
        """Return it for people, the verdict first."""
        row = self.row
        where = row.replica or "the serving store"
        verdict = "warmed" if row.is_chosen else f"not warmed: {row.reason}"
        own = f"{row.unique_tokens} of {row.prompt_tokens} tokens to compute behind what goes before"
        lines = [
            f"{row.kind} {row.item_id} on {where}: {verdict}",
            f"expected uses {row.expected_uses:.2f} in {row.horizon_s} s by {row.policy}, heat {row.heat:.2f}, {own}",
            f"expected gain {row.expected_gain_ms:.1f} ms for {row.expected_cost_ms:.1f} ms of warming",
        ]
        if self.lost_without_ms is not None:
            lines.append(f"left out, {self.lost_without_ms:.1f} ms more prefill would be expected")
        if self.gain_per_token_ms is not None and self.weakest_chosen_ms is not None:
            lines.append(
                f"{self.gain_per_token_ms:.4f} ms gained per token; the weakest chosen item on {where}: "
                f"{self.weakest_chosen_ms:.4f}"
            )
        if row.reason == Reason.HOLDOUT:
            lines.append(f"its subtree was to be warmed with probability {row.assignment_probability:.2f}")
        if self.chance is not None:
            lines.append(f"chance of being asked for within {self.account['window_s']:.0f} s: {self.chance:.2f}")
            lines.append("from " + ", ".join(f"{name} {value:g}" for name, value in self.features.items()))
        lines += _judged(self.account)
        return lines


def _judged(account: Row) -> list[str]:
    """Return who predicts for the item's model, and why."""
    if not account:
        return []
    if not (shares := account["saved_shares"]):
        return ["forecast from counts: the log is too short to learn from"]
    said = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    who = "counts" if account["basis"] == Basis.COUNT else account["basis"]
    return [f"forecast from {who}; {account['windows_judged']} past windows, share of what could be saved: {said}"]


def explain(lake: Lake, run_id: str, item: str) -> list[Explanation]:
    """Return why an item was chosen or refused, one explanation a replica.

    Args:
        lake: holds ``plan/<run_id>`` and ``demand/<run_id>``; ``replicas/<run_id>`` for figures of single items.
        run_id: of the night.
        item: the item's id, or as much of its beginning as is unique.

    Raises:
        ConfigurationError: the run has no plan, or no item or several begin like this.
    """
    if lake.latest("plan", run_id) is None:
        raise ConfigurationError(f"explain: there is no plan of run {run_id}")
    plan = from_table(lake.read(f"plan/{run_id}", "plan"), PlanRow)
    found = sorted({row.item_id for row in plan if row.item_id.startswith(item)}) if item else []
    if len(found) != 1:
        what = f"{len(found)} items begin with" if found else "no item begins with"
        raise ConfigurationError(f"explain: {what} {item!r} in the plan of run {run_id}; the plan lists their ids")
    demand = _Demand(lake, run_id)
    states = demand.states
    return [_explain(row, plan, demand, states.get(row.replica or "")) for row in plan if row.item_id == found[0]]


class _Demand:
    """The tables of ``demand/<run_id>`` that tell why."""

    def __init__(self, lake: Lake, run_id: str) -> None:
        demand = f"demand/{run_id}"
        self.nodes: dict[int, Row] = {row["node"]: row for row in lake.read(demand, "nodes").to_pylist()}
        self._by_place = defaultdict[tuple[Any, ...], list[Row]](list)
        for node in self.nodes.values():
            self._by_place[node["heat_slow"], *(node[name] for name in _PLACE)].append(node)
        self.accounts: dict[str, Row] = lake.meta(demand).get("reuse", {})
        self.reuse: dict[int, Row] = {}
        if self.accounts:
            self.reuse = {row["node"]: row for row in lake.read(demand, "reuse").to_pylist()}
        self.states: dict[str, ReplicaState] = {}
        if lake.latest("replicas", run_id) is not None:
            table = lake.read(f"replicas/{run_id}", "replicas")
            self.states = {state.replica: state for state in from_table(table, ReplicaState)}

    def node_of(self, row: PlanRow) -> Row | None:
        """Return the node in which a prefix ends: its heat, its place and its identity tell."""
        end = row.prompt_tokens - 1
        fitting = self._by_place.get((row.heat, *(getattr(row, name) for name in _PLACE)), [])
        return next((node for node in fitting if node["start_tokens"] < end <= node["end_tokens"]), None)

    def chain(self, node: Row | None) -> Iterator[Row]:
        """Yield a node and those above it."""
        while node is not None:
            yield node
            node = self.nodes.get(node["parent"])


def _explain(row: PlanRow, plan: list[PlanRow], demand: _Demand, state: ReplicaState | None) -> Explanation:
    node = demand.node_of(row) if row.kind is ItemKind.KV_PREFIX else None
    reuse = demand.reuse.get(node["node"]) if node else None
    rivals = [r for r in plan if r.is_chosen and r.kind is row.kind and r.replica == row.replica]
    rates = [rate for rival in rivals if (rate := _rate(rival)) is not None]
    return Explanation(
        row=row,
        lost_without_ms=_lost_without(row, node, demand, state, rivals),
        gain_per_token_ms=_rate(row),
        weakest_chosen_ms=min(rates, default=None),
        chance=reuse["chance"] if reuse else None,
        features={name: reuse[name] for name in NAMES if reuse[name] is not None} if reuse else {},
        account=demand.accounts.get(row.model, {}) if row.kind is ItemKind.KV_PREFIX else {},
    )


def _rate(row: PlanRow) -> float | None:
    return row.expected_gain_ms / row.prompt_tokens if row.prompt_tokens and row.expected_gain_ms else None


def _lost_without(
    row: PlanRow, node: Row | None, demand: _Demand, state: ReplicaState | None, chosen: list[PlanRow]
) -> float | None:
    """Return the prefill of the tokens that no other chosen item holds, times how often each part is expected."""
    if not row.is_chosen:
        return None
    if node is None or state is None:
        return row.expected_gain_ms or None
    per_replica = row.expected_uses / node["expected_uses"] if node["expected_uses"] else 0.0
    end, links = row.prompt_tokens - 1, list(demand.chain(node))
    held, lost = _held_by_others(row, links, demand, chosen), 0.0
    for link in links:
        tokens = min(end, link["end_tokens"]) - max(held, link["start_tokens"])
        lost += link["expected_uses"] * per_replica * prefill_ms(state, max(0, tokens))
    return lost


def _held_by_others(row: PlanRow, links: list[Row], demand: _Demand, chosen: list[PlanRow]) -> int:
    """Return how many of an item's first tokens other chosen items of its replica hold too."""
    mine, most = {link["node"]: link["end_tokens"] for link in links}, 0
    for other in chosen:
        if other.item_id == row.item_id:
            continue
        shared = (link for link in demand.chain(demand.node_of(other)) if link["node"] in mine)
        if (deepest := next(shared, None)) is not None:
            most = max(most, min(mine[deepest["node"]], other.prompt_tokens - 1))
    return most
