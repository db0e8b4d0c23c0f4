"""A cache that is emptied within a living process ends the epoch, though the replica's metrics do not show it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from warmup_tasks.agent.cache_watch import CacheWatch
from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.agent.watch import ReplicaWatch
from warmup_tasks.engines.base import Engine, GenerationRequest
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.items import PromptBody
from warmup_tasks.serving.epochs import EpochStore

MODEL = "double-base"
QUIET = {"time_scale": 0.0, "developer_mode": True}


@pytest.fixture
def double():
    with start_double(**QUIET) as running:
        yield running


async def empty(double) -> None:
    async with httpx.AsyncClient(base_url=double.url) as operator:
        (await operator.post("/reset_prefix_cache")).raise_for_status()


@asynccontextmanager
async def watching(
    double, client, label: str = "one", **spec
) -> AsyncIterator[tuple[CacheWatch, ReplicaWatch, Engine]]:
    replica = ReplicaSpec(name="r0", url=double.url, profile="large", model=MODEL, **spec)
    epochs, settings = EpochStore(client), AgentSettings()
    async with open_engine(replica) as engine:
        yield (
            CacheWatch("r0", MODEL, engine, epochs, settings, label),
            ReplicaWatch("r0", engine, epochs, settings, AgentMetrics()),
            engine,
        )


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/pause?clear_cache=true", "/sleep?level=1"])
async def test_the_sentinel_misses_its_block_after_any_way_of_emptying_the_cache(redis_client, double, path):
    async with (
        watching(double, redis_client) as (cache, replica, _),
        httpx.AsyncClient(base_url=double.url) as operator,
    ):
        assert [await cache.look() for _ in range(3)] == [False, False, False]
        before = await replica.look()
        (await operator.post(path)).raise_for_status()
        await operator.post("/resume")
        await operator.post("/wake_up")
        assert await cache.look()
        assert EpochStore(redis_client).read("r0") is None
        after = await replica.look()
        assert after not in (None, before)
        assert not await cache.look()
        assert await replica.look() == after


async def test_live_traffic_within_the_capacity_does_not_end_an_epoch(redis_client, double):
    async with watching(double, redis_client) as (cache, replica, engine):
        await cache.look()
        before = await replica.look()
        for turn in range(5):
            tokens = [(turn * 7919 + n) % 30_000 for n in range(2000)]
            await engine.generate(GenerationRequest(PromptBody(token_ids=tokens), MODEL), deadline_s=10)
            assert not await cache.look()
        assert await replica.look() == before


async def test_two_agents_have_sentinels_of_their_own(redis_client, double):
    async with (
        watching(double, redis_client, "one") as (one, _, _),
        watching(double, redis_client, "two") as (two, _, _),
    ):
        assert [await one.look(), await two.look()] == [False, False]
        await empty(double)
        assert [await one.look(), await two.look()] == [True, True]


async def test_where_cached_tokens_are_not_told_the_sentinel_says_nothing(redis_client):
    with start_double(**QUIET, faults={"usage_details": "absent"}) as silent:
        async with watching(silent, redis_client) as (cache, _, _):
            await cache.look()
            await empty(silent)
            assert not await cache.look()


async def test_kv_events_end_the_epoch_of_a_cleared_cache(redis_client, tmp_path):
    endpoint = f"ipc://{tmp_path}/kv-events"
    with start_double(**QUIET, kv_events_endpoint=endpoint) as double:
        async with watching(double, redis_client, kv_events_endpoint=endpoint) as (cache, replica, engine):
            listening = asyncio.create_task(cache.listen())
            before = await replica.look()
            epochs = EpochStore(redis_client)
            for _ in range(200):  # the subscription is under way: clear until one is heard
                await empty(double)
                await engine.generate(GenerationRequest(PromptBody(token_ids=[5] * 40), MODEL), deadline_s=10)
                if await asyncio.to_thread(epochs.generation, "r0"):
                    break
            listening.cancel()
            assert await replica.look() not in (None, before)


async def test_a_paused_replica_has_no_epoch_and_comes_back_with_another(redis_client, double):
    async with watching(double, redis_client) as (_, replica, _), httpx.AsyncClient(base_url=double.url) as operator:
        before = await replica.look()
        (await operator.post("/pause")).raise_for_status()
        assert [await replica.look(), await replica.look()] == [None, None]
        (await operator.post("/resume")).raise_for_status()
        assert await replica.look() not in (None, before)
