"""The event trigger: live events out of Redis' stream become asset events, and so runs of ``reactive_warmup``.

Events are read for a consumer group and acknowledged only when Airflow has stored what was made of them, so a triggerer
that dies loses none; what it hands on twice is known again by its id (``reactive.weigh``). Several events within a
short time make one asset event. Nothing is decided here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from warmup_tasks.airflow import context
from warmup_tasks.errors import RetryLaterError

if TYPE_CHECKING:
    import redis

    from warmup_tasks.serving.events import EventStream, StoredEvent

GROUP = "reactive_warmup"
READER = "triggerer"
_BLOCK_S = 2.0  # less than the client's time limit
log = logging.getLogger(__name__)


class EventProducer(SharedStreamProducer):  # type: ignore[misc]  # Airflow's triggers are untyped for mypy
    """Reads the stream for one group: first what was given and never acknowledged, then what comes.

    Args:
        group: whose place in the stream counts.
        debounce_s: how long events are gathered after the first one, in s.
        connect: opens Redis; called in a thread.
    """

    def __init__(self, group: str, debounce_s: float, connect: "Callable[[], redis.Redis]") -> None:
        self._group, self._debounce_s, self._connect = group, debounce_s, connect
        self._client: redis.Redis | None = None
        self._stream: EventStream | None = None

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield what is gathered as ``{"events": […]}``, with the ids to acknowledge; Redis may go and come back."""
        loop, is_again = asyncio.get_running_loop(), True
        while True:
            try:
                found = await self._read(is_again=is_again, block_s=_BLOCK_S)
                is_again = False
                until = loop.time() + self._debounce_s
                while found and (left_s := until - loop.time()) > 0:
                    found += await self._read(block_s=min(left_s, _BLOCK_S))
            except RetryLaterError as error:
                log.warning("%s; trying again", error)
                is_again = True
                await asyncio.sleep(_BLOCK_S)
                continue
            if found:
                yield {"events": [told for one in found if (told := _told(one))]}, [one.id for one in found]

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge what Airflow has stored; the rest is given again when the stream is opened anew."""
        ids = [entry for item in batch if item.outcome.is_clean for entry in item.broker_payload]
        if self._stream is not None:
            await asyncio.to_thread(self._stream.acknowledge, self._group, ids)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    async def _read(self, *, block_s: float, is_again: bool = False) -> "list[StoredEvent]":
        def read() -> "list[StoredEvent]":
            from warmup_tasks.serving.events import EventStream

            if self._stream is None:
                self._client = self._connect()
                self._stream = EventStream(self._client)
            return self._stream.read(self._group, READER, block_s=block_s, is_again=is_again)

        return await asyncio.to_thread(read)


class LiveEventTrigger(BaseEventTrigger):  # type: ignore[misc]
    """Fires for live events of replicas; its payload is ``{"events": […]}``, each with its id and its fields.

    Args:
        group: the consumer group, one for each DAG that is to be given every event.
        debounce_s: how long events are gathered after the first one, in s.
    """

    def __init__(self, group: str = GROUP, debounce_s: float = 5.0) -> None:
        super().__init__()
        self.group, self.debounce_s = group, debounce_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what a triggerer makes it again from."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "group": self.group,
            "debounce_s": self.debounce_s,
        }

    def shared_stream_key(self) -> tuple[str, str]:
        """Return what triggers of one group share: one reader."""
        return "warmup-live-events", self.group

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the reader behind the group's triggers; Airflow tells it what was stored."""
        return EventProducer(kwargs["group"], kwargs["debounce_s"], context.open_redis)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield one event for each batch that says anything."""
        async for batch in shared_stream:
            if batch["events"]:
                yield TriggerEvent(batch)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the same outside a shared stream, where nobody acknowledges: each batch is given again later."""
        producer = EventProducer(self.group, self.debounce_s, context.open_redis)
        try:
            async for batch, _ in producer.open_stream():
                yield TriggerEvent(batch)
        finally:
            await producer.aclose()


def _told(stored: "StoredEvent") -> dict[str, Any] | None:
    if stored.event is None:
        log.warning("event %s has a schema that is not known here: passed over", stored.id)
        return None
    return {"id": stored.id, **stored.event.model_dump(mode="json")}
