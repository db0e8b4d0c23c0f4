"""Run ids, item ids and the rules of items, marks and prompts."""

import hashlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import (
    KINDS,
    WAVES,
    EvidenceKind,
    Feedback,
    GainBasis,
    ItemKind,
    Mark,
    PromptBody,
    Reason,
    Residency,
    item_id,
)
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunPolicy, RunRequest

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)


def run_id(**wishes) -> str:
    return Run.of(RunRequest(**{"as_of": AS_OF, **wishes})).run_id


def test_the_run_id_follows_from_time_and_wishes_alone():
    berlin = AS_OF.astimezone(timezone(timedelta(hours=1)))
    assert run_id() == run_id(as_of=berlin) == Run.of(RunRequest(), default_as_of=AS_OF).run_id
    assert run_id().startswith("20261127T020000Z-")
    assert run_id(as_of=AS_OF + timedelta(microseconds=1)) != run_id()


def test_every_wish_policy_and_parameter_makes_another_run():
    ids = {run_id(), run_id(seed=8), run_id(models=["m"]), run_id(dry_run=True), run_id(log="x")}
    request = RunRequest(as_of=AS_OF)
    ids.add(Run.of(request, RunPolicy(holdout_share=0.1)).run_id)
    ids.add(Run.of(request, parameters=GoldenParameters(top_k=201)).run_id)
    assert len(ids) == 7


def test_the_operators_time_wins_over_the_schedule():
    assert Run.of(RunRequest(as_of=AS_OF), default_as_of=AS_OF + timedelta(days=1)).as_of == AS_OF


def test_a_run_needs_a_time_with_a_zone():
    with pytest.raises(ConfigurationError, match="as_of: give the time"):
        Run.of(RunRequest())
    with pytest.raises(ConfigurationError, match="no time zone"):
        Run.of(RunRequest(as_of=AS_OF.replace(tzinfo=None)))


def test_a_run_travels_as_json():
    run = Run.of(RunRequest(as_of=AS_OF, measure_window_s=300))
    assert Run.model_validate_json(run.model_dump_json()) == run


def test_item_ids_differ_by_everything_that_decides_what_is_right():
    base = {
        "kind": ItemKind.KV_PREFIX,
        "tenant": "t",
        "cache_salt": None,
        "identity_digest": "r1",
        "content_sha256": "c",
    }
    changes = [
        {}, {"kind": ItemKind.RESPONSE}, {"tenant": None}, {"tenant": "u"}, {"cache_salt": "s"}, {"cache_salt": "t"},
        {"identity_digest": "r2"}, {"content_sha256": "d"}, {"tenant": "s", "cache_salt": "t"},
    ]  # fmt: skip
    ids = [item_id(**{**base, **change}) for change in changes]
    assert len(set(ids)) == len(ids)
    assert all(len(found) == 32 and int(found, 16) >= 0 for found in ids)
    canonical = b'{"content":"c","identity":"r1","kind":"kv_prefix","salt":null,"tenant":"t"}'
    assert item_id(**base) == hashlib.sha256(canonical).hexdigest()[:32], "ids stand in marks and receipts"


def test_every_kind_has_its_rules_and_lifetimes():
    assert set(KINDS) == set(ItemKind)
    assert WAVES == (0, 1, 2, 3)
    hours = {kind: rules.ttl_s and rules.ttl_s / 3600 for kind, rules in KINDS.items()}
    assert hours == {
        ItemKind.EMBEDDING: 24, ItemKind.RESPONSE: 12, ItemKind.QA_PAIR: 168,
        ItemKind.ADAPTER: None, ItemKind.KV_PREFIX: None,
    }  # fmt: skip
    order = sorted(KINDS, key=lambda kind: (KINDS[kind].wave, KINDS[kind].order_in_wave))
    assert order[0] is ItemKind.EMBEDDING
    assert order[-1] is ItemKind.KV_PREFIX
    assert KINDS[ItemKind.ADAPTER].wave < KINDS[ItemKind.RESPONSE].wave


def test_a_mark_on_a_replica_needs_an_epoch():
    fields = {
        "item_id": "i", "kind": ItemKind.KV_PREFIX, "tenant": None, "model": "m", "adapter": None,
        "identity_digest": "d", "run_id": "r", "as_of": AS_OF, "marked_at": AS_OF, "expires_at": AS_OF,
        "residency": Residency.HIT,
        "evidence_kind": EvidenceKind.CACHED_TOKENS, "gain_basis": GainBasis.NONE,
    }  # fmt: skip
    assert Mark(**fields, replica=None, epoch=None).schema_version == 1
    with pytest.raises(ValidationError, match="needs the epoch"):
        Mark(**fields, replica="r", epoch=None)
    with pytest.raises(ValidationError, match="Extra inputs"):
        Mark(**fields, replica="r", epoch="e", prompt="text")


def test_a_prompt_is_exactly_one_content_in_the_order_it_was_sent():
    sent = '{"messages":[{"content":"x","role":"user"}],"tools":[{"b":1,"a":2}],"template_args":{"z":1,"a":2}}'
    assert PromptBody.model_validate_json(sent).model_dump_json(exclude_none=True) == sent
    for fields in ({}, {"prompt": "a", "token_ids": [1]}, {"messages": [], "prompt": ""}):
        with pytest.raises(ValidationError, match="exactly one of"):
            PromptBody(**fields)


def test_feedback_keeps_its_ranges():
    row = {"time": AS_OF, "tenant": None, "prompt_sha256": None, "intent_hash": "h", "correction": None}
    assert Feedback(**row, confidence=0.85, adopted_count=3).confidence == 0.85
    for bad in ({"confidence": 1.01, "adopted_count": 0}, {"confidence": -0.1, "adopted_count": 0}):
        with pytest.raises(ValidationError, match="confidence"):
            Feedback(**row, **bad)
    with pytest.raises(ValidationError, match="adopted_count"):
        Feedback(**row, confidence=0.5, adopted_count=-1)


def test_reasons_are_unlike_each_other():
    assert len({reason.value for reason in Reason}) == len(Reason)


def test_a_wish_for_fewer_twins_limits_the_policy():
    asked = RunRequest(as_of=datetime(2026, 11, 27, 2, tzinfo=UTC), max_twins=5)
    assert Run.of(asked).policy.max_twins_per_replica == 5
    assert Run.of(asked.model_copy(update={"max_twins": None})).policy.max_twins_per_replica == 200
