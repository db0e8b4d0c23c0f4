"""The event trigger on Airflow's own shared streams and a real Redis: nothing lost or doubled, events gathered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from tests.dags import nights  # noqa: F401  # names Airflow's home before Airflow is imported
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.events import EventKind, EventStream, LiveEvent

NOW = datetime(2026, 11, 30, 8, tzinfo=UTC)
DEADLINE_S = 30.0


def joined(replica: str) -> LiveEvent:
    return LiveEvent(kind=EventKind.JOINED, replica=replica, model="m", epoch=f"first of {replica}", time=NOW)


class Triggerer:
    """What Airflow's triggerer does with a trigger, as far as events and their storing go.

    Attributes:
        stored: payloads that Airflow has stored, in their order.
        dies_before_storing: the next event is taken and lost with the process.
        dies_before_saying_so: the next event is stored, but the process ends before the reader hears of it.
    """

    def __init__(self) -> None:
        self.stored: list[dict[str, Any]] = []
        self.dies_before_storing = self.dies_before_saying_so = False
        self.died = asyncio.Event()

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[None]:
        from airflow.triggers.shared_stream import SharedStreamManager

        manager, self.died = SharedStreamManager(), asyncio.Event()
        task = asyncio.create_task(self._run(manager, **options))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await manager.stop_all()

    async def _run(self, manager: Any, debounce_s: float = 0.05) -> None:
        from warmup_tasks.airflow.triggers import LiveEventTrigger

        made_by, kwargs = LiveEventTrigger(debounce_s=debounce_s).serialize()
        assert made_by == "warmup_tasks.airflow.triggers.LiveEventTrigger"
        trigger = LiveEventTrigger(**kwargs)
        key = trigger.shared_stream_key()
        stream = manager.subscribe(trigger_id=1, trigger=trigger, key=key)
        async for event in trigger.filter_shared_stream(stream):
            seq = manager.bind_pending_event(trigger_id=1, key=key)
            if self.dies_before_storing:
                break
            self.stored.append(event.payload)
            if self.dies_before_saying_so:
                break
            manager.confirm_persisted([seq])
        self.died.set()
        await asyncio.Event().wait()  # a process that is gone says nothing more

    def replicas(self) -> list[str]:
        return [event["replica"] for payload in self.stored for event in payload["events"]]


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # what another thread and Redis do
            await asyncio.sleep(0.01)


def waiting(client: redis.Redis) -> int:
    """How many events were given and never acknowledged."""
    from warmup_tasks.airflow.triggers import GROUP
    from warmup_tasks.identity import events_key

    found = client.xpending(events_key(), GROUP)
    return int(found["pending"])


@pytest.fixture
def stream(redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> EventStream:
    monkeypatch.setenv("WARMUP_REDIS_URL", redis_url)
    return EventStream(redis_client)


async def test_events_are_stored_once_each_and_acknowledged(stream: EventStream, redis_client: redis.Redis) -> None:
    triggerer = Triggerer()
    stream.announce(joined("r0"))
    async with triggerer.running():
        await until(lambda: triggerer.replicas() == ["r0"])
        stream.announce(joined("r1"))
        await until(lambda: triggerer.replicas() == ["r0", "r1"])
        stream.announce(joined("r2"))
        await until(lambda: triggerer.replicas() == ["r0", "r1", "r2"])
    async with triggerer.running():
        stream.announce(joined("r3"))
        await until(lambda: triggerer.replicas()[-1] == "r3")
    known = [event["id"] for payload in triggerer.stored for event in payload["events"]]
    assert triggerer.replicas() in (["r0", "r1", "r2", "r3"], ["r0", "r1", "r2", "r2", "r3"])
    assert len(set(known)) == 4, "the last one may be handed on again, under its own id"


async def test_what_a_triggerer_took_and_did_not_store_is_given_to_the_next_one(
    stream: EventStream, redis_client: redis.Redis
) -> None:
    triggerer = Triggerer()
    triggerer.dies_before_storing = True
    stream.announce(joined("r0"))
    async with triggerer.running():
        await triggerer.died.wait()
        stream.announce(joined("r1"))
    assert triggerer.stored == []
    triggerer.dies_before_storing = False
    async with triggerer.running():
        await until(lambda: triggerer.replicas() == ["r0", "r1"])
        stream.announce(joined("r2"))
        await until(lambda: triggerer.replicas() == ["r0", "r1", "r2"])
        await until(lambda: waiting(redis_client) <= 1)


async def test_what_is_handed_on_again_keeps_its_id(stream: EventStream) -> None:
    triggerer = Triggerer()
    triggerer.dies_before_saying_so = True
    stream.announce(joined("r0"))
    async with triggerer.running():
        await triggerer.died.wait()
    triggerer.dies_before_saying_so = False
    async with triggerer.running():
        await until(lambda: triggerer.replicas() == ["r0", "r0"])
    first, second = triggerer.stored
    assert first == second


async def test_events_within_a_short_time_make_one(stream: EventStream) -> None:
    triggerer = Triggerer()
    async with triggerer.running(debounce_s=0.5):
        for replica in ("r0", "r1", "r2"):
            stream.announce(joined(replica))
        await until(lambda: len(triggerer.replicas()) == 3)
    assert len(triggerer.stored) == 1


async def test_redis_may_go_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmup_tasks.airflow import triggers
    from warmup_tasks.serving.connection import connect

    monkeypatch.setattr(triggers, "_BLOCK_S", 0.2)
    with RedisServer() as server:
        monkeypatch.setattr(triggers.context, "open_redis", lambda: connect(server.url, attempts=1, timeout_s=1))
        triggerer = Triggerer()
        async with triggerer.running():
            EventStream(connect(server.url)).announce(joined("r0"))
            await until(lambda: triggerer.replicas() == ["r0"])
            server.stop()
            server.start()
            EventStream(connect(server.url)).announce(joined("r1"))
            await until(lambda: triggerer.replicas()[-1] == "r1")
