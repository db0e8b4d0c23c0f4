"""The newest plan wins: an older run neither overwrites nor voids what a newer one left, in whatever order they end."""

from datetime import timedelta
from itertools import permutations

import pytest

from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore

DAYS = (timedelta(0), timedelta(days=1), timedelta(days=2))


@pytest.fixture
def days(make_mark, now):
    """One mark of the same item by the plans of three days."""
    return [make_mark(run_id=f"day {n}", as_of=now - timedelta(days=2) + day) for n, day in enumerate(DAYS)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_newest_day_s_mark_stands_whatever_came_last(redis_client, days, now, order):
    store = MarkStore(redis_client)
    written = [store.put_many([days[n]], now) for n in order]
    assert store.get(MarkAddress.of(days[0])) == days[2]
    newest = [n == max(order[: place + 1]) for place, n in enumerate(order)]
    assert written == newest


def test_fractions_of_a_second_are_told_apart(redis_client, make_mark, now):
    store, at = MarkStore(redis_client), now.replace(microsecond=0)
    later = make_mark(run_id="later", as_of=at + timedelta(milliseconds=120))
    assert store.put_many([later], now) == 1
    assert store.put_many([make_mark(run_id="whole second", as_of=at)], now) == 0
    assert store.put_many([make_mark(run_id="a little before", as_of=at + timedelta(milliseconds=119))], now) == 0
    assert store.put_many([make_mark(run_id="the same again", as_of=later.as_of)], now) == 1


def test_an_older_plan_may_speak_of_a_new_epoch(redis_client, days, now):
    store = MarkStore(redis_client)
    store.put_many([days[2]], now)
    again = days[0].model_copy(update={"epoch": "e2"})
    assert store.put_many([again], now) == 1
    assert store.get(MarkAddress.of(again)) == again


def test_values_of_the_store_go_by_time_alone(redis_client, make_mark, now):
    store = MarkStore(redis_client)
    newest = make_mark(replica=None, epoch=None, as_of=now)
    store.put_many([newest], now)
    assert store.put_many([newest.model_copy(update={"as_of": now - DAYS[1]})], now) == 0
    assert store.get(MarkAddress.of(newest)) == newest


def test_an_older_verdict_voids_no_newer_mark(redis_client, make_mark, days, now):
    store = MarkStore(redis_client)
    old = make_mark(item_id="b" * 32, as_of=days[0].as_of)
    store.put_many([days[1], old], now)
    addresses = [MarkAddress.of(days[1]), MarkAddress.of(old)]
    assert store.void_many(addresses, as_of=days[0].as_of) == 1
    assert store.get_many(addresses) == [days[1], None]
    assert store.void_many(addresses, as_of=days[1].as_of) == 1
    assert store.void_many(addresses) == 0


def test_renewing_an_old_mark_leaves_the_one_that_took_its_place(redis_client, days, now):
    store = MarkStore(redis_client)
    store.put_many([days[1]], now)
    assert store.renew_many([days[0]], now) == 0
    assert store.renew_many([days[1]], now) == 1
    assert store.get(MarkAddress.of(days[1])) == days[1]


@pytest.fixture
def record(now):
    def make(replica="r0", age=timedelta(0), **more):
        values = {"epoch": "e1", "planned": 4, "ready": 4, "share": 1.0, "is_ready": True}
        return ReadinessRecord(
            model="m", replica=replica, run_id=f"{age}", as_of=now - age, identity_digest="d" * 64,
            expires_at=now + timedelta(hours=1), **(values | more),
        )  # fmt: skip

    return make


def test_readiness_is_what_the_newest_plan_says(redis_client, record, now):
    store = ReadinessStore(redis_client)
    assert store.put(record(), now)
    assert not store.put(record(age=DAYS[1], ready=0, is_ready=False), now)
    assert store.read("m", "r0") == record()
    assert store.put(record(age=DAYS[1], epoch="e2"), now)
    assert store.read("m", "r0").epoch == "e2"


def test_newer_plans_are_those_that_still_hold(redis_client, record, now):
    store = ReadinessStore(redis_client)
    for replica, epoch in (("r0", "e1"), ("r1", "restarted")):
        EpochStore(redis_client).publish(EpochRecord(replica=replica, epoch=epoch, observed_at=now))
    for replica in ("r0", "r1", "nobody knows its epoch"):
        store.put(record(replica), now)
    newer = store.newer(now - DAYS[1], now)
    assert [newer.covers("m", name) for name in ("r0", "r1", "nobody knows its epoch")] == [True, False, False]
    assert newer.covers("m", None)
    assert not newer.covers("other model", None)
    assert not store.newer(now, now).covers("m", "r0")
    assert not store.newer(now - DAYS[1], now + timedelta(hours=2)).covers("m", "r0")
