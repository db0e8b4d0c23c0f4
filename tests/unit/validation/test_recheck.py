"""The re-check before the peak: what still holds is renewed, what does not is void, and readiness is counted anew."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.support.small_night import MODEL, SmallNight, now, write_adapter
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.items import Reason
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.readiness import ReadinessStore, is_ready
from warmup_tasks.settings import RunPolicy
from warmup_tasks.validation.recheck import NO_PLAN, recheck

LATER = timedelta(hours=2)


@pytest.fixture
def double():
    with start_double(num_gpu_blocks=600, time_scale=0.3, developer_mode=True) as running:
        yield running


@pytest.fixture
def night(tmp_path: Path, redis_client: redis.Redis, double) -> SmallNight:
    path = write_adapter(tmp_path / "sql")
    sql = AdapterSpec(name="sql", version="1", path=str(path), base_model=MODEL)
    night = SmallNight(tmp_path, redis_client, {"a": double}, adapters=[sql])
    night.adapter("a", "sql")
    for seed in range(3):
        night.prefix("a", night.tokens(seed, 40), order=seed)
    night.prefix("a", night.tokens(9, 40), order=3, adapter="sql")
    assert night.whole()["ready"] == 5
    return night


def look_again(night: SmallNight, *, after: timedelta = LATER, **more: Any) -> dict[str, Any]:
    found = recheck(
        night.lake, night.fleet, open_engine=night.opener, redis=night.redis, now=lambda: now() + after, **more
    )
    return asyncio.run(found)["a"]


def marked(night: SmallNight) -> set[int]:
    """Orders of the marked prefixes; -1 is the adapter."""
    marks = {mark.item_id for mark in MarkStore(night.redis).find(Reach(replica="a"))}
    return {row.order if row.kind == "kv_prefix" else -1 for row in night.rows if row.item_id in marks}


def test_what_still_holds_is_renewed(night: SmallNight):
    night.publish_epochs()
    before = {mark.item_id: mark.expires_at for mark in MarkStore(night.redis).find(Reach(replica="a"))}
    seen = look_again(night, after=timedelta(minutes=5))
    after = {mark.item_id: mark.expires_at for mark in MarkStore(night.redis).find(Reach(replica="a"))}
    assert (seen["renewed"], seen["voided"], seen["reasons"], seen["is_ready"]) == (5, 0, {}, True)
    assert all(after[name] > before[name] for name in before)
    assert ReadinessStore(night.redis).read(MODEL, "a").ready == 5


def test_what_was_evicted_is_void_and_readiness_says_so(night: SmallNight, double):
    night.publish_epochs()
    for seed in (100, 101):  # live traffic that fills most of the cache; the coldest goes first
        tokens = night.tokens(seed, 225)
        body = {"model": MODEL, "prompt": tokens, "max_tokens": 1}
        httpx.post(f"{double.url}/v1/completions", json=body, timeout=10).raise_for_status()
    seen = look_again(night)
    assert seen["voided"] > 0
    assert set(seen["reasons"]) <= {Reason.RESIDENCY_MISS, Reason.MAYBE_EVICTED}
    standing = marked(night)
    assert len(standing) == seen["renewed"] < 5
    record = ReadinessStore(night.redis).read(MODEL, "a")
    assert (record.ready if record else 0) == len(standing)


def test_at_most_so_many_are_asked_for_hottest_first_and_the_rest_is_left(night: SmallNight):
    night.publish_epochs()
    seen = look_again(night, max_prefixes=2)
    assert (seen["renewed"], seen["kept"], seen["voided"]) == (3, 2, 0)
    assert marked(night) == {-1, 0, 1, 2, 3}


def test_an_adapter_that_was_taken_away_takes_its_prefixes_with_it(night: SmallNight, double):
    night.publish_epochs()
    night.control_text("a", "/v1/unload_lora_adapter", lora_name="sql")
    look_again(night)
    assert marked(night) == {0, 1, 2}


def test_other_weights_void_everything_on_the_replica(night: SmallNight, double):
    night.publish_epochs()
    night.control("a", "/double/weights", revision="r9")
    seen = look_again(night)
    assert seen["reasons"] == {Reason.IDENTITY_CONTRADICTED: 5}
    assert marked(night) == set()
    assert not is_ready(night.redis, MODEL, "a").is_ready


def test_marks_of_an_earlier_epoch_are_void_without_a_question(night: SmallNight):
    EpochStore(night.redis).begin_generation("a")
    night.publish_epochs()
    assert look_again(night)["reasons"] == {Reason.EPOCH_CHANGED: 5}
    assert marked(night) == set()


def test_while_the_epoch_is_unknown_marks_are_neither_renewed_nor_void(night: SmallNight):
    EpochStore(night.redis).forget("a")
    seen = look_again(night)
    assert (seen["renewed"], seen["voided"], seen["kept"], seen["is_ready"]) == (0, 0, 5, False)


def test_a_mark_that_was_voided_meanwhile_does_not_come_back(night: SmallNight):
    night.publish_epochs()
    store = MarkStore(night.redis)
    marks = list(store.find(Reach(replica="a")))
    store.void(Reach(item_id=marks[0].item_id))
    assert store.renew_many(marks, now()) == len(marks) - 1
    assert len(list(store.find(Reach(replica="a")))) == len(marks) - 1


def test_a_mark_whose_plan_is_gone_is_void(night: SmallNight):
    night.publish_epochs()
    night.lake.drop("plan", night.run.run_id)
    assert look_again(night)["reasons"] == {NO_PLAN: 5}


def test_a_field_that_the_policy_requires_must_be_verified(night: SmallNight):
    night.publish_epochs()
    assert look_again(night, policy=RunPolicy(required_evidence=["chat_template_digest"]))["renewed"] == 5
