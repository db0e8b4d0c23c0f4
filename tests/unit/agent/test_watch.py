import logging

import httpx
import pytest

from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.agent.watch import ReplicaWatch
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.settings import validate


@pytest.fixture
def double():
    with start_double(time_scale=0.0, developer_mode=True) as running:
        yield running


@pytest.fixture
def metrics():
    return AgentMetrics()


@pytest.fixture
def watching(double, metrics):
    """Opens a watch on the double that publishes through a client."""

    def watch(client, url: str = double.url) -> tuple[ReplicaWatch, object]:
        engine = open_engine(ReplicaSpec(name="r0", url=url, profile="large", model="double-base"))
        return ReplicaWatch("r0", engine, EpochStore(client), AgentSettings(), metrics), engine

    return watch


async def test_the_epoch_stays_while_the_replica_lives(redis_client, watching, metrics):
    watch, engine = watching(redis_client)
    async with engine:
        first = await watch.look()
        assert await watch.look() == first
    assert EpochStore(redis_client).read("r0").epoch == first
    assert metrics.registry.get_sample_value("warmup_agent_looks_total", {"replica": "r0"}) == 2
    assert metrics.registry.get_sample_value("warmup_agent_epochs_begun_total", {"replica": "r0"}) in (None, 0)


async def test_another_agent_publishes_the_same_epoch(redis_client, watching):
    one, engine = watching(redis_client)
    other, second = watching(redis_client)
    async with engine, second:
        assert await one.look() == await other.look()


async def test_fallen_counters_begin_an_epoch_that_never_comes_back(redis_client, watching):
    epochs = EpochStore(redis_client)
    watch, engine = watching(redis_client)
    async with engine:
        seen = [await watch.look()]
        last = epochs.last_seen("r0")
        for _ in range(2):  # as if the counters had been higher a moment ago
            epochs.keep(last.model_copy(update={"prompt_tokens": last.prompt_tokens + 10}))
            seen.append(await watch.look())
        restarted, again = watching(redis_client)
        async with again:
            assert await restarted.look() == seen[-1]
    assert len(set(seen)) == 3


async def test_a_failed_look_withdraws_the_epoch_at_once(redis_client, watching, double, metrics, caplog):
    watch, engine = watching(redis_client)
    async with engine:
        epoch = await watch.look()
        double.kill()
        with caplog.at_level(logging.WARNING):
            assert [await watch.look(), await watch.look()] == [None, None]
    assert epoch is not None
    assert EpochStore(redis_client).read("r0") is None
    assert metrics.registry.get_sample_value("warmup_agent_look_failures_total", {"replica": "r0"}) == 2
    assert metrics.registry.get_sample_value("warmup_agent_is_epoch_known", {"replica": "r0"}) == 0
    assert len([r for r in caplog.records if "r0 cannot be seen" in r.message]) == 1


async def test_sleep_ends_the_epoch(redis_client, watching, double):
    watch, engine = watching(redis_client)
    async with engine, httpx.AsyncClient(base_url=double.url) as operator:
        before = await watch.look()
        (await operator.post("/sleep", params={"level": 1})).raise_for_status()
        assert [await watch.look(), await watch.look()] == [None, None]
        assert EpochStore(redis_client).read("r0") is None
        (await operator.post("/wake_up")).raise_for_status()
        awake = await watch.look()
        assert awake not in (None, before)
        assert await watch.look() == awake


async def test_redis_may_go_and_come_back(watching, metrics):
    with RedisServer() as server:
        watch, engine = watching(connect(server.url, attempts=2, timeout_s=1))
        async with engine:
            first = await watch.look()
            server.stop()
            assert await watch.look() is None
            server.start()
            assert await watch.look() == first
    assert metrics.registry.get_sample_value("warmup_agent_store_failures_total") == 1


def test_an_epoch_outlives_a_round():
    with pytest.raises(ConfigurationError, match="must stay below epoch_ttl_s"):
        validate({"poll_s": 8.0}, AgentSettings, "agent settings")
    with pytest.raises(ConfigurationError, match="epoch_ttl_s"):
        validate({"epoch_ttl_s": 16.0}, AgentSettings, "agent settings")
