"""The whole store on Redis as installations run it: cluster, sentinel, TLS, a socket, a user with few rights.

Each time the same things are done: values of several tenants, marks, epochs, leases, readiness, reading, invalidation.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import redis

from tests.support.redis_topologies import redis_behind_sentinel, redis_cluster, redis_with_tls
from warmup_tasks.errors import ConfigurationError, GiveUpError, RetryLaterError
from warmup_tasks.identity import is_permanent
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.connection import connect, node_of, nodes, store_errors
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.invalidate import Invalidator
from warmup_tasks.serving.lease import Leases
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.reader import Hit, Miss, ReaderClient
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore, is_ready
from warmup_tasks.serving.replica_turns import ReplicaTurns
from warmup_tasks.serving.store import ValueStore

DOCS = Path(__file__).resolve().parents[3] / "docs" / "redis.md"
TENANTS = (None, "acme", "beta", "gamma/eu", "delta")
REPLICAS = ("r0", "r1", "r2")
Exercise = Callable[[redis.Redis], None]


@pytest.fixture
def exercise(make_response, make_embedding, make_mark, mark_of, identity, now) -> Exercise:
    """What a night, its readers and an invalidation do, on whatever client; leaves no key that has no end."""

    def do(client: redis.Redis) -> None:
        values = [make_response(f"p{n}", tenant=tenant) for tenant in TENANTS for n in range(700)]
        values += [make_embedding(f"p{n}", tenant=tenant) for tenant in TENANTS for n in range(3)]
        store, marks, epochs = ValueStore(client), MarkStore(client), EpochStore(client)
        assert store.put_many(values, now).written == len(values)
        assert store.put_many(values, now).written == len(values)
        IdentityBook(client).remember([identity])
        for replica in REPLICAS:
            assert epochs.begin_generation(replica) == 1
            assert epochs.publish(EpochRecord(replica=replica, epoch="e1", observed_at=now), generation=1)
            assert not epochs.publish(EpochRecord(replica=replica, epoch="e0", observed_at=now), generation=0)
        assert [record.epoch for record in epochs.read_many(REPLICAS)] == ["e1"] * 3
        written = [mark_of(value) for value in values] + [make_mark(replica=replica) for replica in REPLICAS]
        assert marks.put_many(written, now) == len(written)
        assert all(marks.get_many([MarkAddress.of(mark) for mark in written]))
        _lease(client)
        _readiness(client, identity.digest(), now)
        reader = ReaderClient(client)
        for value in values[: 700 * len(TENANTS) : 350]:
            hit = reader.response(value.tenant, identity, value.prompt_sha256)
            assert isinstance(hit, Hit)
            assert hit.value == value
        invalidator, reach = Invalidator(client), Reach(model="m")
        seen = invalidator.preview(reach)
        assert (seen.values["response"], seen.marks) == (700 * len(TENANTS), len(written) - 15)
        done = invalidator.invalidate(reach)
        assert (done.values, done.marks, done.readiness) == (seen.values, seen.marks, 3)
        assert isinstance(reader.response(None, identity, values[0].prompt_sha256), Miss)
        assert marks.void(Reach(tenant="acme")) == 3

    return do


async def _turn(client: redis.Redis) -> None:
    async with ReplicaTurns(client, "task", wait_s=5).on("r/1"):
        pass


def _lease(client: redis.Redis) -> None:
    leases = Leases(client)
    asyncio.run(_turn(client))
    mine = leases.acquire("gpu", "me", 30)
    assert mine is not None
    assert leases.acquire("gpu", "you", 30) is None
    assert leases.renew(mine, 30)
    assert leases.release(mine)


def _readiness(client: redis.Redis, identity_digest: str, now: datetime) -> None:
    store = ReadinessStore(client)
    for replica in REPLICAS:
        record = ReadinessRecord(
            model="m", replica=replica, run_id="run", as_of=now, epoch="e1", identity_digest=identity_digest,
            planned=1, ready=1, share=1.0, is_ready=True, expires_at=now + timedelta(hours=1),
        )  # fmt: skip
        store.put(record, now)
        assert is_ready(client, "m", replica).is_ready
    assert {record.replica for record in store.records()} == set(REPLICAS)


def leaked(client: redis.Redis) -> list[str]:
    keys = [key.decode() for node in nodes(client) for key in node.client.scan_iter(count=1000)]
    return sorted(key for key in keys if client.pttl(key) == -1 and not is_permanent(key))


@pytest.fixture(scope="module")
def cluster():
    with redis_cluster() as servers:
        yield servers


def test_a_cluster_of_three(cluster, exercise):
    with connect(f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster[0].port}") as client:
        exercise(client)
        assert len(nodes(client)) == 3
        assert leaked(client) == []


def test_a_cluster_keeps_tenants_on_several_nodes_and_each_whole(cluster, make_response, now):
    with connect(f"redis+cluster://127.0.0.1:{cluster[1].port}") as client:
        values = [make_response(f"p{n}", tenant=f"t{n % 20}") for n in range(200)]
        ValueStore(client).put_many(values, now)
        places = {value.prefix: node_of(client, value.prefix).name for value in values}
        assert len(set(places.values())) == 3
        assert all(places[value.prefix] == node_of(client, value.key).name for value in values)


def test_a_slot_that_moves_in_mid_load_is_followed(cluster, make_response, now):
    with connect(f"redis+cluster://127.0.0.1:{cluster[0].port}") as client:
        values = [make_response(f"p{n}", tenant="mover") for n in range(4000)]
        slot, owner = client.keyslot(values[0].prefix), node_of(client, values[0].prefix)
        target = next(node for node in nodes(client) if node.name != owner.name)
        moved = []

        def move(sent: int) -> None:
            if not moved:
                moved.append(sent)
                _move_slot(client, slot, owner, target)

        report = ValueStore(client).put_many(values, now, on_progress=move)
        assert moved
        assert report.resumed >= 1
        assert node_of(client, values[0].prefix).name == target.name
        assert ValueStore(client).existing([value.key for value in values]) == {value.key for value in values}


def _move_slot(client: redis.Redis, slot: int, owner, target) -> None:
    ids = {node.name: node.client.execute_command("CLUSTER MYID").decode() for node in (owner, target)}
    target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[owner.name])
    owner.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target.name])
    host, _, port = target.name.partition(":")
    while keys := owner.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 1000):
        owner.client.migrate(host, int(port), keys, 0, 5000)
    for node in nodes(client):
        node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target.name])


def test_a_sentinel_s_service_and_a_failover_in_mid_load(tmp_path, exercise, make_response, now):
    with redis_behind_sentinel(tmp_path) as (url, primary, replica), connect(url) as client:
        exercise(client)
        assert leaked(client) == []
        values = [make_response(f"q{n}") for n in range(3000)]
        fail = lambda sent: primary.stop() if sent == 1000 else None  # noqa: E731
        report = ValueStore(client).put_many(values, now, on_progress=fail, deadline_s=30.0)
        assert report.resumed >= 1
        with connect(replica.url) as promoted:
            assert promoted.info("replication")["role"] == "master"
            assert ValueStore(promoted).existing([v.key for v in values]) == {v.key for v in values}


def test_tls_with_client_certificates(tmp_path, exercise):
    try:
        with redis_with_tls(tmp_path) as (url, server):
            with connect(url) as client:
                exercise(client)
                assert leaked(client) == []
            without = connect(url.partition("?")[0], attempts=1)
            with pytest.raises(RetryLaterError), store_errors("asking"):
                without.ping()
            assert connect(server.url).ping()
    except ConfigurationError as missing:
        pytest.skip(str(missing))


def test_a_socket_file(tmp_path, exercise):
    path = tmp_path / "redis.sock"
    with RedisServer(options={"unixsocket": str(path)}), connect(f"unix://{path}?db=0") as client:
        exercise(client)
        assert leaked(client) == []


def test_a_user_with_the_documented_rights_and_no_more(exercise):
    rights = re.search(r"ACL SETUSER (\S+) on >\S+ (.*?)\n```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert rights is not None
    with RedisServer() as server, connect(server.url) as admin:
        words = rights.group(2).replace("\\\n", " ").split()
        admin.execute_command("ACL SETUSER", "warmup", "on", ">s3cret%/", *words)
        admin.execute_command("ACL SETUSER", "default", "off")
        with connect(f"redis://warmup:s3cret%25%2F@127.0.0.1:{server.port}/0") as client:
            exercise(client)
            for refused in (client.flushall, lambda: client.set("others", 1, ex=9), client.config_get):
                with pytest.raises(GiveUpError), store_errors("asking"):
                    refused()
        with connect(server.url) as nobody, pytest.raises(GiveUpError, match="credentials"), store_errors("asking"):
            nobody.ping()


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://a:port,b",
        "http+cluster://a",
        "redis+ring://a:1",
        "redis+sentinel://a:26379",
        "redis+cluster://:pa/ss@a:6379",
    ],
)
def test_a_url_of_several_hosts_that_is_none_is_refused_without_its_password(url):
    with pytest.raises(ConfigurationError, match=r"redis\+sentinel://a:26379,b:26379/service") as refused:
        connect(url)
    assert "pa" not in str(refused.value).replace("path", "")


def test_a_cluster_that_nobody_answers_for_is_worth_another_try():
    with pytest.raises(RetryLaterError, match="cluster"):
        connect("redis+cluster://127.0.0.1:1", attempts=1, timeout_s=0.5)
