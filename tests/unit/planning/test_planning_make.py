"""The plan step on hand-made demand: what is chosen, where, in which order, and why not."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warmup_tasks.errors import ConfigurationError, ContractError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.items import Arm, ItemKind, PlanRow, Reason, ReplicaState
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.planning import DependencyGraph, make_plan
from warmup_tasks.planning.cost import capacity_blocks
from warmup_tasks.runs import Run
from warmup_tasks.settings import HardwareProfile

Plan = Callable[..., tuple[list[PlanRow], dict[str, Any]]]
KV = ItemKind.KV_PREFIX


def kv(rows: list[PlanRow], replica: str = "large-0", *, chosen: bool = True) -> list[PlanRow]:
    return [r for r in rows if r.kind is KV and r.replica == replica and r.is_chosen is chosen]


def with_policy(run: Run, **updates: Any) -> Run:
    return run.model_copy(update={"policy": run.policy.model_copy(update=updates)})


def test_capacity_is_engine_less_longest_prompt_times_concurrency_less_canary_times_share(
    run: Run, replicas: list[ReplicaState]
) -> None:
    # 16,000 tokens are 1,000 blocks; 2 × 161 tokens need 2 × 11 blocks, 64 of canary 4; of 974 the share 0.6
    busy = run.model_copy(update={"parameters": GoldenParameters(concurrency=2)})
    assert capacity_blocks(replicas[0], 161, busy) == 584
    assert capacity_blocks(replicas[0], 16_000, busy) == 0


def test_an_item_is_a_whole_path_and_its_payload_holds_one_token_more(demand: Any, plan: Plan) -> None:
    top = demand.node(4, 9)
    demand.node(2, 5, parent=top)
    rows, facts = plan(demand)
    (item,) = kv(rows)
    payload = facts["payloads"][item.payload_sha256]
    assert payload["token_ids"] == [*demand.tokens[1], 7]
    assert (payload["expected_cached_tokens"], item.prompt_tokens, item.unique_tokens) == (96, 97, 96)
    assert (item.wave, item.queue, item.shard, item.profile) == (3, "gpu.large", "large.w3.large-0", "large")


def test_the_hottest_comes_last_and_shared_tokens_are_counted_once(demand: Any, plan: Plan) -> None:
    top = demand.node(4, 30)
    for uses in (7, 3, 5):
        demand.node(2, uses, parent=top)
    items = kv(plan(demand)[0])
    assert [(r.order, r.heat, r.unique_tokens) for r in items] == [(0, 3.0, 96), (1, 5.0, 32), (2, 7.0, 32)]
    assert items[0].expected_cost_ms == 10 + 0.5 * 96
    assert items[1].expected_cost_ms == 10 + 0.5 * 32


def test_a_router_that_deals_in_turn_brings_a_third_of_the_uses_to_each_of_three(demand: Any, plan: Plan) -> None:
    demand.node(4, 9)
    rows, _ = plan(demand)
    found = [kv(rows, name)[0] for name in ("large-0", "large-1", "small-0")]
    assert [r.expected_uses for r in found] == [3.0] * 3
    assert [r.expected_gain_ms for r in found] == [3.0 * 0.5 * 64] * 3
    assert len({r.item_id for r in found}) == 1


def test_a_full_cache_keeps_the_hottest_and_says_what_did_not_fit(
    demand: Any, plan: Plan, replicas: list[ReplicaState]
) -> None:
    for uses in range(2, 12):
        demand.node(20, uses)
    # 1,000 tokens: 62 blocks, 21 + 4 held free, 0.6 of 37: 22 blocks, one path and a cut one
    small = [replicas[0].model_copy(update={"capacity_tokens": 1000})]
    rows, facts = plan(demand, small)
    chosen = kv(rows)
    assert [(r.heat, r.unique_tokens) for r in chosen] == [(10.0, 32), (11.0, 320)]
    assert facts["capacity"]["large-0"]["plan_blocks"] == 22
    assert {r.reason for r in kv(rows, chosen=False)} == {Reason.OVER_CAPACITY}
    assert facts["reasons"]["kv_prefix"] == {Reason.OVER_CAPACITY: 8}


def test_one_very_long_prompt_does_not_take_the_room_of_all_others(
    demand: Any, plan: Plan, replicas: list[ReplicaState], run: Run
) -> None:
    busy = run.model_copy(update={"parameters": GoldenParameters(concurrency=4)})
    for _ in range(9):
        demand.node(10, 50)
    demand.node(240, 2)
    rows, _ = plan(demand, [replicas[0].model_copy(update={"capacity_tokens": 16_000})], busy)
    assert [r.heat for r in kv(rows)] == [50.0] * 9


@given(
    st.lists(st.tuples(st.integers(-1, 20), st.integers(1, 30), st.integers(1, 50)), min_size=1, max_size=15),
    st.integers(0, 12_000),
    st.floats(0, 0.5),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_plan_exceeds_capacity_and_every_plan_is_prefix_closed(
    demand: Any, plan: Plan, run: Run, replicas: list[ReplicaState],
    nodes: list[tuple[int, int, int]], capacity_tokens: int, holdout: float,
) -> None:  # fmt: skip
    fresh = type(demand)()
    uses: list[float] = []
    for number, (parent, blocks, raw) in enumerate(nodes):
        above = min(parent, number - 1)
        uses.append(min(raw, uses[above]) if above >= 0 else raw)
        root = fresh.rows["nodes"][above]["subtree_root"] if above >= 0 else f"root{number}"
        fresh.node(blocks, uses[-1], parent=above, subtree_root=root)
    state = replicas[0].model_copy(update={"capacity_tokens": capacity_tokens})
    rows, facts = plan(fresh, [state], with_policy(run, holdout_share=holdout))
    prefixes = set()
    for item in kv(rows):
        tokens = facts["payloads"][item.payload_sha256]["token_ids"]
        blocks = [tuple(tokens[: end + 16]) for end in range(0, len(tokens) - 1, 16)]
        assert item.unique_tokens == 16 * len(set(blocks) - prefixes)
        prefixes |= set(blocks)
        assert len(tokens) % 16 == 1
    longest = max((item.prompt_tokens for item in kv(rows)), default=0)
    assert len(prefixes) <= capacity_blocks(state, longest, run)
    assert len(prefixes) == facts["capacity"]["large-0"]["chosen_blocks"]


def test_the_same_demand_gives_the_same_plan(
    demand: Any, plan: Plan, lake: Lake, run: Run, fleet: FleetFile, profiles: Any, replicas: list[ReplicaState]
) -> None:
    for uses in (3, 3, 3):
        demand.node(3, uses)
        demand.prompt(f"p{uses}{len(demand.tokens)}")
    _, facts = plan(demand)
    assert make_plan(lake, run, fleet, profiles, replicas[::-1])[0] == facts["ref"]


def test_a_held_out_subtree_stays_cold_with_its_answers_and_shared_ancestors_stay(
    demand: Any, plan: Plan, run: Run
) -> None:
    top = demand.node(4, 900, subtree_root=None)
    for number in range(200):
        demand.node(1, 4, parent=top, subtree_root=f"root{number}")
        demand.prompt(f"p{number}", subtree_root=f"root{number}")
        demand.intent(f"q{number}", subtree_root=f"root{number}")
    rows, _ = plan(demand, of=with_policy(run, holdout_share=0.25))
    held = {r.subtree_root for r in rows if r.arm is Arm.HOLDOUT}
    assert 30 <= len(held) <= 70
    for item in rows:
        if item.kind is ItemKind.EMBEDDING:
            assert (item.is_chosen, item.assignment_probability) == (True, 1.0)
        else:
            assert item.is_chosen is (item.subtree_root not in held)
            assert item.reason == ("" if item.is_chosen else Reason.HOLDOUT)
            assert item.assignment_probability == 0.75
    per_replica = {r.replica: set() for r in rows if r.kind is KV}
    for item in rows:
        if item.kind is KV and not item.is_chosen:
            per_replica[item.replica].add(item.subtree_root)
    assert set(map(frozenset, per_replica.values())) == {frozenset(held)}


def test_when_all_below_is_held_out_the_shared_ancestor_is_an_item_of_its_own(
    demand: Any, plan: Plan, run: Run
) -> None:
    top = demand.node(4, 9, subtree_root=None)
    demand.node(1, 4, parent=top, subtree_root="held")
    always = with_policy(run, holdout_share=0.5)
    seeds = (always.model_copy(update={"request": run.request.model_copy(update={"seed": s})}) for s in range(20))
    ends = {kv(plan(demand, of=seed)[0])[0].prompt_tokens for seed in seeds}
    assert ends == {65, 81}


def test_other_seeds_hold_out_other_subtrees(demand: Any, plan: Plan, run: Run) -> None:
    for _ in range(60):
        demand.node(1, 4)
    held = []
    for seed in (1, 2):
        request = run.request.model_copy(update={"seed": seed})
        rows, _ = plan(demand, of=with_policy(run, holdout_share=0.3).model_copy(update={"request": request}))
        held.append({r.subtree_root for r in rows if r.arm is Arm.HOLDOUT})
    assert held[0] != held[1]


def test_prefixes_wait_for_their_adapter_on_their_replica_and_answers_for_their_embedding(
    demand: Any, plan: Plan
) -> None:
    demand.adapter("legal", 9)
    demand.node(3, 5, adapter="legal")
    demand.node(3, 5)
    for number in range(8):
        demand.prompt(f"p{number}", adapter="legal")
    demand.prompt("base")
    rows, _ = plan(demand)
    chosen = {(r.item_id, r.replica): r for r in rows if r.is_chosen}
    loads = {r.replica: r for r in rows if r.kind is ItemKind.ADAPTER}
    assert set(loads) == {"large-0", "large-1", "small-0"}
    for replica in loads:
        by_adapter = {r.adapter: r.depends_on for r in kv(rows, replica)}
        assert by_adapter == {"legal": [loads[replica].item_id], None: []}
    for response in (r for r in rows if r.kind is ItemKind.RESPONSE):
        kinds = [chosen[d, None].kind if (d, None) in chosen else ItemKind.ADAPTER for d in response.depends_on]
        assert kinds == ([ItemKind.EMBEDDING, ItemKind.ADAPTER] if response.adapter else [ItemKind.EMBEDDING])
        assert chosen[response.depends_on[0], None].profile == response.profile
    for load in loads.values():
        sources = [chosen[source, None] for source in load.depends_on]
        assert {s.profile for s in sources} <= {load.profile}
    assert sum(len(load.depends_on) for load in loads.values()) > 0
    DependencyGraph(r for r in rows if r.is_chosen).check_waves()


def test_a_tombstone_keeps_an_item_out_with_what_depends_on_it_and_nothing_else(demand: Any, plan: Plan) -> None:
    demand.adapter("legal", 9)
    demand.node(3, 5, adapter="legal")
    demand.node(3, 5)
    demand.prompt("base")
    demand.prompt("p", adapter="legal")
    before, _ = plan(demand)
    load = next(r for r in before if r.kind is ItemKind.ADAPTER)
    rows, facts = plan(demand, tombstones=[load.item_id, "0" * 32])
    reasons = {(r.kind, r.adapter): r.reason for r in rows if not r.is_chosen}
    assert reasons[ItemKind.ADAPTER, "legal"] == Reason.TOMBSTONED
    assert reasons[KV, "legal"] == reasons[ItemKind.RESPONSE, "legal"] == Reason.DEPENDENCY_FAILED
    assert {r.item_id for r in before if r.is_chosen and r.adapter is None} <= {r.item_id for r in rows if r.is_chosen}
    assert facts["reasons"]["adapter"] == {Reason.TOMBSTONED: 3}
    assert plan(demand)[0] == before


def test_a_tombstoned_embedding_leaves_an_adapter_its_other_clusters(demand: Any, plan: Plan) -> None:
    demand.adapter("legal", 9)
    for number in range(8):
        demand.prompt(f"p{number}", adapter="legal")
    before, _ = plan(demand)
    load = next(r for r in before if r.kind is ItemKind.ADAPTER and len(r.depends_on) > 1)
    gone = load.depends_on[0]
    rows, _ = plan(demand, tombstones=[gone])
    after = next(r for r in rows if (r.item_id, r.replica) == (load.item_id, load.replica))
    assert after.is_chosen
    assert after.depends_on == [name for name in load.depends_on if name != gone]


def test_adapters_beyond_the_slots_are_refused_with_their_prefixes(
    demand: Any, plan: Plan, replicas: list[ReplicaState]
) -> None:
    for name in ("legal", "med"):
        demand.adapter(name, 9)
        demand.node(3, 5, adapter=name)
    rows, _ = plan(demand, [replicas[0].model_copy(update={"max_adapters": 1})])
    adapters = {r.adapter: r.reason for r in rows if r.kind is ItemKind.ADAPTER}
    assert adapters == {"legal": "", "med": Reason.OVER_CAPACITY}
    assert {r.adapter: r.reason for r in rows if r.kind is KV} == adapters


def test_an_adapter_that_the_fleet_file_does_not_list_is_refused(demand: Any, plan: Plan) -> None:
    demand.adapter("gone", is_listed=False)
    demand.refuse("p", Reason.ADAPTER_UNKNOWN, adapter="gone")
    rows, _ = plan(demand)
    assert {(r.kind, r.adapter, r.reason, r.replica) for r in rows} == {
        (ItemKind.ADAPTER, "gone", Reason.ADAPTER_UNKNOWN, None),
        (KV, "gone", Reason.ADAPTER_UNKNOWN, None),
    }


def test_a_correction_is_the_answer_of_its_qa_pair_and_needs_no_adapter(demand: Any, plan: Plan) -> None:
    demand.intent("corrected", adapter="legal", correction="Press reset.")
    demand.intent("plain")
    rows, facts = plan(demand)
    pairs = [r for r in rows if r.kind is ItemKind.QA_PAIR]
    answers = {facts["payloads"][r.payload_sha256]["answer_text"]: r for r in pairs}
    assert set(answers) == {"Press reset.", None}
    assert (answers["Press reset."].is_chosen, answers["Press reset."].unique_tokens) == (True, 0)
    assert answers[None].unique_tokens == 40
    hashes = {facts["payloads"][r.payload_sha256]["intent_hash"] for r in pairs}
    assert hashes == {row["intent_hash"] for row in demand.rows["intents"]}


def test_responses_need_answers_that_succeeded_and_tenants_never_share(demand: Any, plan: Plan) -> None:
    demand.prompt("same question")
    demand.prompt("same question", tenant="beta")
    demand.prompt("mostly failing", ok_uses=1)
    rows, _ = plan(demand)
    responses = [r for r in rows if r.kind is ItemKind.RESPONSE]
    assert {r.tenant for r in responses} == {"acme", "beta"}
    assert len({r.item_id for r in responses}) == 2
    assert len([r for r in rows if r.kind is ItemKind.EMBEDDING]) == 3


def test_an_answer_needs_room_for_its_own_tokens(demand: Any, plan: Plan, run: Run) -> None:
    room = 4096 - run.policy.response_tokens
    demand.prompt("fits", prompt_tokens=room)
    demand.prompt("too long", prompt_tokens=room + 1)
    rows, _ = plan(demand)
    reasons = {r.prompt_tokens: r.reason for r in rows if r.kind is ItemKind.RESPONSE}
    assert reasons == {room: "", room + 1: Reason.TOO_LONG}


@pytest.mark.parametrize("prompts", [0, 1, 300])
def test_the_number_of_shards_does_not_depend_on_the_number_of_items(demand: Any, plan: Plan, prompts: int) -> None:
    for number in range(prompts):
        demand.prompt(f"p{number}")
        demand.node(1, 3)
    rows, facts = plan(demand)
    assert facts["shards"] == {
        "large": {
            "0": ["large.w0.00", "large.w0.01"],
            "1": ["large.w1.large-0", "large.w1.large-1"],
            "2": ["large.w2.00", "large.w2.01"],
            "3": ["large.w3.large-0", "large.w3.large-1"],
        },
        "small": {
            "0": ["small.w0.00", "small.w0.01"],
            "1": ["small.w1.small-0"],
            "2": ["small.w2.00", "small.w2.01"],
            "3": ["small.w3.small-0"],
        },
    }
    known = {shard for waves in facts["shards"].values() for shards in waves.values() for shard in shards}
    assert {r.shard for r in rows if r.is_chosen} <= known


def test_orders_count_up_in_each_shard_and_the_grain_holds(demand: Any, plan: Plan) -> None:
    for number in range(40):
        demand.prompt(f"p{number}", uses=number + 2)
        demand.node(1, number + 2)
        demand.intent(f"p{number}", uses=number + 2)
    rows, _ = plan(demand)
    assert len({(r.item_id, r.replica) for r in rows}) == len(rows)
    for shard in {r.shard for r in rows}:
        own = [r for r in rows if r.shard == shard and r.is_chosen]
        assert all(a.order < b.order for a, b in pairwise(own))
        for kind in {r.kind for r in own}:
            heats = [r.heat for r in own if r.kind is kind]
            assert heats == sorted(heats)


def test_refusals_of_demand_stand_in_the_plan_and_the_rest_is_counted(demand: Any, plan: Plan) -> None:
    demand.refuse("a", Reason.VOLATILE_HEAD)
    demand.refuse("a", Reason.VOLATILE_HEAD)  # two bodies of one prompt
    demand.refuse("b", Reason.NOT_WARMABLE)
    rows, facts = plan(demand)
    assert sorted((r.reason, r.is_chosen, r.replica, r.profile, r.payload_sha256) for r in rows) == [
        (Reason.NOT_WARMABLE, False, None, "", None),
        (Reason.VOLATILE_HEAD, False, None, "", None),
    ]
    assert facts["not_served"] == {"other": 2}


def test_only_the_replicas_asked_for_are_planned(demand: Any, plan: Plan, run: Run) -> None:
    demand.node(2, 5)
    request = run.request.model_copy(update={"replicas": ["small-0"]})
    rows, facts = plan(demand, of=run.model_copy(update={"request": request}))
    assert {r.replica for r in rows} == {"small-0"}
    assert facts["shards"]["large"] == {"0": [], "1": [], "2": [], "3": []}


def test_what_is_missing_is_said(
    demand: Any, plan: Plan, lake: Lake, run: Run, fleet: FleetFile, replicas: list[ReplicaState],
    profiles: list[HardwareProfile],
) -> None:  # fmt: skip
    with pytest.raises(ContractError, match="demand/"):
        make_plan(lake, run, fleet, profiles, replicas)
    with pytest.raises(ConfigurationError, match="replicas"):
        plan(demand, [])
    with pytest.raises(ConfigurationError, match="small"):
        make_plan(lake, run, fleet, profiles[:1], replicas)


def test_the_best_answers_are_generated_up_to_the_limit(demand: Any, plan: Plan, run: Run) -> None:
    for uses in (9, 3, 7):
        demand.prompt(f"p{uses}", uses, latency_ms=10.0)
    demand.intent("i", 5)
    limited = run.model_copy(update={"request": run.request.model_copy(update={"max_answers": 2})})
    answers = [r for r in plan(demand, of=limited)[0] if r.kind in (ItemKind.RESPONSE, ItemKind.QA_PAIR)]
    assert {r.expected_uses for r in answers if r.is_chosen} == {9.0, 5.0}
    assert {r.reason for r in answers if not r.is_chosen} == {Reason.ANSWER_LIMIT}
