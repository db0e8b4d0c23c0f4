import re

import pytest

from warmup_tasks.errors import GiveUpError, RetryLaterError
from warmup_tasks.identity import EmbedderIdentity, IdentityField
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.store import ValueStore, estimated_bytes
from warmup_tasks.serving.values import AdapterValue

BIG = EmbedderIdentity(embedder="e", revision="1", dimensions=1024)


@pytest.fixture
def many(make_embedding):
    """5,000 vectors of 4 KB."""
    vector = [0.25] * BIG.dimensions
    return [make_embedding(f"p{n}", vector, by=BIG) for n in range(5000)]


def test_lives_follow_the_kind(redis_client, make_embedding, make_response, identity, now):
    lora = identity.for_adapter("a", IdentityField(declared="1"))
    entry = AdapterValue(
        item_id="i", identity_digest=lora.digest(), created_at=now, model="m", adapter="a", version="1", path="/a"
    )
    embedding, response = make_embedding(), make_response()
    report = ValueStore(redis_client).put_many([embedding, response, entry], now)
    assert report.written == 3
    assert redis_client.ttl(embedding.key) == pytest.approx(24 * 3600, abs=5)
    assert redis_client.ttl(response.key) == pytest.approx(12 * 3600, abs=5)
    assert redis_client.ttl(entry.key) == -1


def test_writing_twice_leaves_the_same_state(redis_client, make_response, now):
    store, values = ValueStore(redis_client), [make_response("a"), make_response("b"), make_response("a", "newer")]
    assert store.put_many(values, now).written == 2
    before = sorted((key, redis_client.type(key)) for key in redis_client.scan_iter())
    assert store.put_many(values, now).written == 2
    assert sorted((key, redis_client.type(key)) for key in redis_client.scan_iter()) == before
    assert store.get(values[0].key).text == "newer"


def test_estimate_is_not_below_what_redis_takes(redis_client, many, now):
    values = many[:2000]
    before = redis_client.info("memory")["used_memory"]
    report = ValueStore(redis_client).put_many(values, now)
    taken = redis_client.info("memory")["used_memory"] - before
    assert taken <= report.estimated_bytes <= 1.25 * taken
    assert report.estimated_bytes == sum(estimated_bytes(value) for value in values)


def test_memory_is_checked_beforehand(many, now):
    with RedisServer(maxmemory_bytes=20_000_000) as server:
        client = connect(server.url)
        with pytest.raises(GiveUpError, match=r"5000 values need .* MB .* maxmemory of 20\.0 MB.*Nothing was written"):
            ValueStore(client).put_many(many, now)
        assert client.dbsize() == 0
        assert ValueStore(client).put_many(many[:2000], now).written == 2000


def test_running_out_of_memory_in_mid_load_stops_with_a_message(many, now):
    with RedisServer(maxmemory_bytes=60_000_000) as server:
        client = connect(server.url)
        shrink = lambda done: client.config_set("maxmemory", 15_000_000) if done == 1500 else None  # noqa: E731
        with pytest.raises(GiveUpError, match="maxmemory"):
            ValueStore(client).put_many(many, now, on_progress=shrink)
        assert [key for key in client.scan_iter(count=1000) if b"mark:" in key] == []


def test_eviction_is_no_success(many, now):
    with RedisServer(maxmemory_bytes=60_000_000) as server:
        client = connect(server.url)

        def shrink(done: int) -> None:
            if done == 1500:
                client.config_set("maxmemory-policy", "allkeys-lru")
                client.config_set("maxmemory", 15_000_000)

        with pytest.raises(GiveUpError, match="evicts"):
            ValueStore(client).put_many(many, now, on_progress=shrink)


def test_a_lost_connection_is_waited_for_and_each_item_is_there_once(many, now):
    with RedisServer() as server:
        client = connect(server.url, attempts=2)
        before = server.pid

        def restart(done: int) -> None:
            if done == 2000 and server.pid == before:
                server.stop()
                server.start()  # on the same port, and empty

        report = ValueStore(client).put_many(many, now, on_progress=restart)
        assert server.pid != before
        assert report.written == len(many)
        assert report.resumed >= 1
        keys = [key.decode() for key in client.scan_iter(match="*emb:*", count=1000)]
        assert sorted(keys) == sorted(value.key for value in many)
        assert all(re.search(r"emb:[0-9a-f]{64}$", key) for key in keys)


def test_a_server_that_stays_away_is_an_error_and_repeating_resumes(many, now):
    with RedisServer() as server:
        client = connect(server.url, attempts=1)
        store = ValueStore(client)
        stop = lambda done: server.stop() if done == 500 else None  # noqa: E731
        with pytest.raises(RetryLaterError):
            store.put_many(many[:1000], now, on_progress=stop, deadline_s=0.5)
        server.start()
        assert store.put_many(many[:1000], now).written == 1000
        assert len(store.existing([value.key for value in many])) == 1000
