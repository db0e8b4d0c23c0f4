"""Following KV events from the past into the present, against a publisher that can be told what to send and to keep."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from warmup_tasks.engines import kv_events
from warmup_tasks.engines.base import KvEvent
from warmup_tasks.errors import RetryLaterError

END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Two sockets of an engine. Message ``n`` says that block ``n`` was removed; ``kept`` are those it still has."""

    def __init__(self, folder: Path) -> None:
        self.endpoints = f"ipc://{folder}/live", f"ipc://{folder}/old"
        context = zmq.asyncio.Context.instance()
        self.live, self.old = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self.live.bind(self.endpoints[0])
        self.old.bind(self.endpoints[1])
        self.kept: list[int] = []
        self.asked: list[int] = []

    async def subscribed(self) -> None:
        await self.live.recv()

    async def send(self, *numbers: int) -> None:
        for number in numbers:
            await self.live.send_multipart([b"", *_message(number)])

    async def serve_replay(self, dropped: tuple[int, ...] = ()) -> None:
        client, _, start = await self.old.recv_multipart()
        self.asked.append(int.from_bytes(start, "big"))
        for number in self.kept:
            if number >= self.asked[-1] and number not in dropped:
                await self.old.send_multipart([client, b"", b"", *_message(number)])
        await self.old.send_multipart([client, b"", b"", END, b""])

    def close(self) -> None:
        self.live.close(linger=0)
        self.old.close(linger=0)


def _message(number: int) -> tuple[bytes, bytes]:
    event = {"type": "BlockRemoved", "block_hashes": [number], "medium": "GPU"}
    return number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [event]])


def seen(events: list[KvEvent]) -> list[int | str]:
    return [event.block_hashes[0] if event.kind == "removed" else event.kind for event in events]


@pytest.fixture
async def publisher(tmp_path: Path) -> AsyncIterator[Publisher]:
    made = Publisher(tmp_path)
    yield made
    made.close()


class Follower:
    """Reads a stream while the publisher does what it is told."""

    def __init__(self, publisher: Publisher) -> None:
        self._stream = kv_events.follow(*publisher.endpoints)
        self._publisher = publisher

    async def take(self, count: int, *work) -> list[int | str]:
        """Return the next events, the publisher doing its work meanwhile."""
        import asyncio

        async def read() -> list[KvEvent]:
            return [await anext(self._stream) for _ in range(count)]

        async with asyncio.timeout(20):
            found, *_ = await asyncio.gather(read(), *work)
        return seen(found)

    async def is_over(self) -> bool:
        return await anext(self._stream, None) is None


@pytest.fixture
async def follower(publisher: Publisher) -> AsyncIterator[Follower]:
    made = Follower(publisher)
    async with aclosing(made._stream):
        yield made


async def test_the_past_comes_first_and_nothing_twice(publisher: Publisher, follower: Follower) -> None:
    publisher.kept = [3, 4, 5]
    assert await follower.take(4, publisher.serve_replay(), publisher.subscribed()) == [3, 4, 5, "current"]
    assert await follower.take(2, publisher.send(4, 5, 6, 7)) == [6, 7]
    assert publisher.asked == [0]


async def test_a_gap_is_filled(publisher: Publisher, follower: Follower) -> None:
    await follower.take(1, publisher.serve_replay(), publisher.subscribed())
    publisher.kept = [0, 1, 2, 3]
    assert await follower.take(4, publisher.send(0, 3), publisher.serve_replay()) == [0, 1, 2, 3]
    assert publisher.asked == [0, 1]


async def test_a_replay_with_a_hole_is_asked_for_again(publisher: Publisher, follower: Follower) -> None:
    publisher.kept = [0, 1, 2, 3]

    async def serve() -> None:
        await publisher.serve_replay(dropped=(2,))
        await publisher.serve_replay()

    assert await follower.take(5, serve(), publisher.subscribed()) == [0, 1, 2, 3, "current"]
    assert publisher.asked == [0, 2]


async def test_what_is_gone_is_told_and_ends_the_stream(publisher: Publisher, follower: Follower) -> None:
    publisher.kept = [0]
    await follower.take(2, publisher.serve_replay(), publisher.subscribed())
    publisher.kept = [4, 5]
    assert await follower.take(1, publisher.send(5), publisher.serve_replay()) == ["lost"]
    assert await follower.is_over()


async def test_a_restart_is_told(publisher: Publisher, follower: Follower) -> None:
    await follower.take(1, publisher.serve_replay(), publisher.subscribed())
    assert await follower.take(3, publisher.send(0, 1, 0)) == [0, 1, "lost"]
    assert await follower.is_over()


async def test_silence_is_an_error(publisher: Publisher, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "_REPLAY_DEADLINE_S", 0.05)
    with pytest.raises(RetryLaterError, match="old KV events"):
        await follower.take(1)


def test_what_happens_outside_gpu_memory_is_left_out() -> None:
    event = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU"}
    assert kv_events.decode(msgspec.msgpack.encode([1.0, [event]])) == []
