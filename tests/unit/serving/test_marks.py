from datetime import timedelta

import pytest
from pydantic import ValidationError

from warmup_tasks.errors import RetryLaterError
from warmup_tasks.identity import NO_TENANT, IdentityField, ServingIdentity, index_key, mark_key, namespace
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Reach


def test_a_mark_lives_until_it_ends(redis_client, make_mark, now):
    store, mark = MarkStore(redis_client), make_mark(expires_at=now + timedelta(minutes=10))
    assert store.put_many([mark], now) == 1
    assert store.get(MarkAddress.of(mark)) == mark
    assert redis_client.ttl(MarkAddress.of(mark).key) == pytest.approx(600, abs=5)
    assert redis_client.ttl(index_key(MarkAddress.of(mark).prefix)) >= redis_client.ttl(MarkAddress.of(mark).key)


def test_an_ended_mark_is_not_written(redis_client, make_mark, now):
    store = MarkStore(redis_client)
    assert store.put_many([make_mark(expires_at=now)], now) == 0
    assert redis_client.dbsize() == 0


def test_writing_twice_leaves_the_same_state(redis_client, make_mark, now):
    store, marks = MarkStore(redis_client), [make_mark(item_id=f"{n:032x}") for n in range(1200)]
    store.put_many(marks, now)
    before = sorted(redis_client.scan_iter(count=1000))
    store.put_many(marks, now)
    assert sorted(redis_client.scan_iter(count=1000)) == before
    assert len(list(store.find(Reach(model="m")))) == 1200


def test_two_revisions_of_one_name_do_not_see_each_other(redis_client, make_mark, identity, now):
    other = identity.model_copy(update={"weights_revision": IdentityField(declared="r2")})
    mark = make_mark()
    MarkStore(redis_client).put_many([mark], now)
    address = MarkAddress(None, other.digest(), mark.item_id, mark.replica)
    assert MarkStore(redis_client).get(address) is None


@pytest.mark.parametrize("tenants", [("a:b", "a"), ("acme/eu", "acme%2Feu"), ("{a}", "a"), ("x" * 200, "x" * 199)])
def test_tenants_never_share_a_namespace(redis_client, make_mark, now, tenants):
    store = MarkStore(redis_client)
    one, other = (make_mark(tenant=tenant) for tenant in tenants)
    store.put_many([one], now)
    assert store.get(MarkAddress.of(other)) is None
    assert store.void(Reach(tenant=tenants[1])) == 0
    assert store.void(Reach(tenant=tenants[0])) == 1


def test_key_parts_do_not_run_into_each_other(identity):
    digest = identity.digest()
    assert mark_key("a", digest, "i", "b:c") != mark_key("a", digest, "i:b", "c")
    assert namespace("a:b", digest) != namespace("a", "b:" + digest)
    assert namespace(NO_TENANT, digest) != namespace(None, digest)


@pytest.fixture
def spread(redis_client, make_mark, identity, now):
    """Six marks that differ in tenant, replica, adapter and item."""
    lora = identity.for_adapter("sql", IdentityField(declared="1"))
    marks = {
        "base r0": make_mark(),
        "base r1": make_mark(replica="r1"),
        "base r10": make_mark(replica="r10"),
        "other item": make_mark(item_id="b" * 32),
        "adapter": make_mark(adapter="sql", identity_digest=lora.digest()),
        "tenant": make_mark(tenant="acme"),
    }
    MarkStore(redis_client).put_many(list(marks.values()), now)
    return marks


@pytest.mark.parametrize(
    ("reach", "voided"),
    [
        ({"replica": "r1"}, {"base r1"}),
        ({"item_id": "b" * 32}, {"other item"}),
        ({"adapter": "sql"}, {"adapter"}),
        ({"tenant": "acme"}, {"tenant"}),
        ({"tenant": NO_TENANT}, {"base r0", "base r1", "base r10", "other item", "adapter"}),
        ({"tenant": NO_TENANT, "replica": "r0"}, {"base r0", "other item", "adapter"}),
        ({"model": "m"}, {"base r0", "base r1", "base r10", "other item", "adapter", "tenant"}),
        ({"model": "n"}, set()),
        ({"item_id": "a" * 31}, set()),
    ],
)
def test_void_reaches_exactly_what_it_names(redis_client, spread, reach, voided):
    store, asked = MarkStore(redis_client), Reach(**reach)
    assert {m.model_dump_json() for m in store.find(asked)} == {spread[name].model_dump_json() for name in voided}
    assert store.count(asked) == len(voided)
    assert store.void(asked) == len(voided)
    left = {name for name, mark in spread.items() if store.get(MarkAddress.of(mark))}
    assert left == set(spread) - voided
    assert store.void(asked) == 0


def test_single_marks_are_voided_by_address(redis_client, spread):
    store = MarkStore(redis_client)
    gone = [MarkAddress.of(spread[name]) for name in ("base r0", "adapter")]
    assert store.void_many([*gone, MarkAddress(None, "0" * 64, "c", None)]) == 2
    assert store.get_many(gone) == [None, None]


def test_a_revision_reaches_its_own_marks_and_those_of_unknown_revision(redis_client, make_mark, now):
    book, store = IdentityBook(redis_client), MarkStore(redis_client)
    of = {
        name: ServingIdentity(model="m", weights_revision=IdentityField(declared=name)) for name in ("r1", "r2", "r3")
    }
    book.remember([of["r1"], of["r2"]])
    store.put_many([make_mark(identity_digest=identity.digest()) for identity in of.values()], now)
    asked = Reach(model="m", weights_revision="r1")
    assert {mark.identity_digest for mark in store.find(asked)} == {of["r1"].digest(), of["r3"].digest()}


def test_a_reach_says_something():
    for nothing in ({}, {"weights_revision": "r1"}, {"embedder_revision": "1"}):
        with pytest.raises(ValidationError):
            Reach(**nothing)


def test_namespaces_are_forgotten_when_their_marks_have_ended(redis_client, make_mark, now):
    store = MarkStore(redis_client)
    store.put_many([make_mark(tenant="old", expires_at=now + timedelta(minutes=1))], now)
    store.put_many([make_mark(tenant="new", expires_at=now + timedelta(hours=2))], now + timedelta(minutes=5))
    assert [where.tenant for where in store.namespaces(Reach(model="m"))] == ["new"]


def test_redis_away_is_said_so(make_mark, now):
    store = MarkStore(connect("redis://127.0.0.1:1/0", attempts=1, timeout_s=0.5))
    with pytest.raises(RetryLaterError, match="writing marks"):
        store.put_many([make_mark()], now)
