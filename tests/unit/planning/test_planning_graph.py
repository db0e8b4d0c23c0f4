"""What waits for what, and what falls with what (spec 2.2)."""

from datetime import UTC, datetime
from typing import Any

import pytest

from warmup_tasks.errors import ContractError
from warmup_tasks.items import KINDS, Arm, ItemKind, PlanRow
from warmup_tasks.planning.graph import DependencyGraph, Key, Label


def row(kind: ItemKind, name: str, *depends_on: str, replica: str | None = None, **values: Any) -> PlanRow:
    base: dict[str, Any] = {
        "run_id": "r", "as_of": datetime(2026, 11, 27, tzinfo=UTC), "horizon_s": 60, "policy": "static",
        "parameters_version": "p", "seed": 1, "item_id": name, "kind": kind, "wave": KINDS[kind].wave, "order": 0,
        "queue": "q", "shard": "s", "profile": "large", "replica": replica, "tenant": None, "cache_salt": None,
        "model": "m", "adapter": None, "identity_digest": "i", "payload_sha256": f"pay-{name}",
        "depends_on": list(depends_on), "subtree_root": None, "prompt_tokens": 1, "unique_tokens": 1, "heat": 0.0,
        "expected_uses": 0.0, "expected_gain_ms": 0.0, "expected_cost_ms": 0.0, "assignment_probability": 1.0,
        "arm": Arm.WARM, "is_chosen": True, "reason": "",
    }  # fmt: skip
    return PlanRow(**(base | values))


def night() -> list[PlanRow]:
    return [
        row(ItemKind.EMBEDDING, "emb1"),
        row(ItemKind.EMBEDDING, "emb2"),
        *(row(ItemKind.ADAPTER, "lora", "emb1", "emb2", replica=replica) for replica in ("a", "b")),
        row(ItemKind.RESPONSE, "resp1", "emb1"),
        row(ItemKind.RESPONSE, "resp2", "emb2", "lora"),
        *(row(ItemKind.KV_PREFIX, "kv", "lora", replica=replica) for replica in ("a", "b")),
        row(ItemKind.KV_PREFIX, "kv-base", replica="a"),
    ]


def skipped(*failed: Key) -> set[tuple[str, str | None]]:
    return {tuple(key) for key in DependencyGraph(night()).dependants_to_skip(failed)}


def test_edges_are_labelled_as_in_the_specification() -> None:
    edges = set(DependencyGraph(night()).edges())
    assert (Key("prompt:pay-emb1", None), Key("emb1", None), Label.FORWARD) in edges
    assert (Key("emb1", None), Key("lora", "a"), Label.INIT) in edges
    assert (Key("lora", "a"), Key("kv", "a"), Label.DELTA_UPDATE) in edges
    assert (Key("emb2", None), Key("resp2", None), Label.FORWARD) in edges
    assert (Key("lora", "b"), Key("resp2", None), Label.DELTA_UPDATE) in edges
    assert (Key("lora", "a"), Key("kv", "b"), Label.DELTA_UPDATE) not in edges


def test_waves_come_from_topological_order() -> None:
    waves = DependencyGraph(night()).waves()
    place = {key: number for number, wave in enumerate(waves) for key in wave}
    assert len(place) == len(night())
    for source, target, _ in DependencyGraph(night()).edges():
        if source in place:
            assert place[source] < place[target]


def test_an_adapter_is_skipped_only_when_all_its_clusters_failed() -> None:
    assert skipped(Key("emb1", None)) == {("resp1", None)}
    assert skipped(Key("emb1", None), Key("emb2", None)) == {
        ("resp1", None), ("resp2", None), ("lora", "a"), ("lora", "b"), ("kv", "a"), ("kv", "b"),
    }  # fmt: skip


def test_a_failed_adapter_takes_its_own_replica_s_prefixes_and_nothing_else() -> None:
    assert skipped(Key("lora", "a")) == {("kv", "a")}
    assert skipped(Key("lora", "a"), Key("lora", "b")) == {("kv", "a"), ("kv", "b"), ("resp2", None)}


def test_a_skipped_item_names_what_it_was_skipped_for() -> None:
    found = DependencyGraph(night()).dependants_to_skip([Key("lora", "b")])
    assert found == {Key("kv", "b"): Key("lora", "b")}


def test_invalidating_an_adapter_voids_its_prefixes_and_answers_not_the_base_model_s() -> None:
    assert DependencyGraph(night()).invalidated_by(Key("lora", "a")) == [Key("kv", "a"), Key("resp2", None)]
    assert DependencyGraph(night()).invalidated_by(Key("emb1", None)) == [Key("resp1", None)]


def test_a_circle_is_refused_and_named() -> None:
    rows = [row(ItemKind.RESPONSE, "one", "two"), row(ItemKind.RESPONSE, "two", "one")]
    with pytest.raises(ContractError, match=r"circle: (one -> two -> one|two -> one -> two)"):
        DependencyGraph(rows)


def test_a_dependency_outside_the_plan_is_named() -> None:
    with pytest.raises(ContractError, match="kv depends on gone"):
        DependencyGraph([row(ItemKind.KV_PREFIX, "kv", "gone", replica="a")])
    elsewhere = row(ItemKind.ADAPTER, "lora", replica="c", profile="small")
    with pytest.raises(ContractError, match="kv depends on lora"):
        DependencyGraph([elsewhere, row(ItemKind.KV_PREFIX, "kv", "lora", replica="a")])


def test_waves_that_contradict_the_dependencies_are_refused() -> None:
    DependencyGraph(night()).check_waves()
    early = row(ItemKind.RESPONSE, "resp", "emb", wave=0)
    with pytest.raises(ContractError, match="resp in wave 0 needs emb"):
        DependencyGraph([row(ItemKind.EMBEDDING, "emb"), early]).check_waves()
