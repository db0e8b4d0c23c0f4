from datetime import timedelta

from warmup_tasks.identity import NAMESPACES_KEY, IdentityField, tombstone_key
from warmup_tasks.serving.collect import Collector
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import NamespaceIndex
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.tombstones import TombstoneStore
from warmup_tasks.serving.values import AdapterValue


def entry(identity, name: str, created_at, version: str = "1") -> AdapterValue:
    of = identity.for_adapter(name, IdentityField(declared=version))
    return AdapterValue(
        item_id=name, identity_digest=of.digest(), created_at=created_at, model="m", adapter=name, version=version,
        path=f"/{name}",
    )  # fmt: skip


def test_adapter_entries_that_nobody_declares_go_after_the_stated_time(redis_client, identity, mark_of, now):
    old, limit = now - timedelta(days=20), now - timedelta(days=14)
    values = {
        "declared": entry(identity, "a", old),
        "retired": entry(identity, "b", old),
        "young": entry(identity, "c", now),
        "marked": entry(identity, "d", old),
    }
    ValueStore(redis_client).put_many(list(values.values()), now)
    MarkStore(redis_client).put_many([mark_of(values["marked"], replica="r0", epoch="e1")], now)
    before = sorted(redis_client.scan_iter())
    collector, declared = Collector(redis_client), {values["declared"].identity_digest}
    preview = collector.collect(declared, limit, is_dry_run=True)
    assert sorted(redis_client.scan_iter()) == before
    done = collector.collect(declared, limit)
    assert done.adapter_entries == preview.adapter_entries == [values["retired"].key]
    assert done.namespaces == preview.namespaces == 1
    assert {name for name, value in values.items() if redis_client.exists(value.key)} == set(values) - {"retired"}
    assert collector.collect(declared, limit).adapter_entries == []


def test_namespaces_in_which_nothing_is_left_come_off_the_list(redis_client, make_response, now):
    gone, stays = make_response("a", tenant="gone"), make_response("a", tenant="stays")
    ValueStore(redis_client).put_many([gone, stays], now)
    for key in redis_client.scan_iter("wt1:{gone*"):
        redis_client.delete(key)
    assert Collector(redis_client).collect(set(), now).namespaces == 1
    assert [where.tenant for where in NamespaceIndex(redis_client).namespaces()] == ["stays"]
    assert redis_client.exists(NAMESPACES_KEY)


def test_a_tombstone_stands_until_it_ends_or_is_removed(redis_client, now):
    stones = TombstoneStore(redis_client)
    assert stones.item_ids() == frozenset()
    stone = stones.put("a" * 32, now)
    stones.put("b" * 32, now, timedelta(seconds=60))
    assert stones.item_ids() == {"a" * 32, "b" * 32}
    assert stone.expires_at == now + timedelta(days=30)
    assert (stones.remove("a" * 32), stones.remove("a" * 32)) == (True, False)
    assert stones.item_ids() == {"b" * 32}
    assert 0 < redis_client.ttl(tombstone_key("b" * 32)) <= 60
