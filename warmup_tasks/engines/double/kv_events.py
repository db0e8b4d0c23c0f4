"""KV-cache events over ZeroMQ, in the engine's own message layout.

Here live the messages (msgpack, one map an event, tagged ``type``) and the publisher with its replay buffer. What
happened is told by the scheduler and the block pool.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

_REPLAY_BATCHES = 10_000
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_MEDIUM = "GPU"


class _Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(_Event):
    """Blocks became findable. ``token_ids`` are those of all blocks together."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(_Event):
    """Blocks were evicted."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(_Event):
    """The prefix cache was reset."""


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """The events of one step."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def external_hash(key: bytes) -> int:
    """Return the 64-bit form of a block key that events carry."""
    return int.from_bytes(key, "big") & (2**64 - 1)


class KvEvents:
    """Collects events and publishes them a step at a time; without an endpoint it drops them."""

    def __init__(self, endpoint: str | None, replay_endpoint: str | None, topic: str) -> None:
        self.is_on = endpoint is not None
        self._topic = topic.encode()
        self._replay_endpoint = replay_endpoint
        self._events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=_REPLAY_BATCHES)
        self._sequence = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._replaying: asyncio.Task[None] | None = None
        if endpoint is None:
            return
        self._context = zmq.asyncio.Context()
        self._publisher = zmq.Context(self._context).socket(zmq.PUB)
        # A wildcard or local endpoint is bound, any other is connected to: the engine decides it the same way.
        if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
            self._publisher.bind(endpoint)
        else:
            self._publisher.connect(endpoint)
        if replay_endpoint is not None:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.bind(replay_endpoint)
            self._replaying = asyncio.ensure_future(self._serve_replays())

    @property
    def endpoint(self) -> str | None:
        """The bound address, a port chosen by the system filled in."""
        return self._publisher.getsockopt_string(zmq.LAST_ENDPOINT) if self.is_on else None

    def stored(
        self,
        keys: Sequence[bytes],
        parent: bytes | None,
        tokens: Sequence[int],
        block_size: int,
        adapter: tuple[int, str] | None,
        salt: str | None,
    ) -> None:
        """Note blocks that became findable, neighbours in one request; the first has no parent at a prompt's start."""
        if not self.is_on:
            return
        named = () if adapter is None else (adapter[1],)
        extra = [named or None] * len(keys)
        if parent is None and salt is not None:
            extra[0] = (*named, salt)
        event = BlockStored(
            block_hashes=[external_hash(key) for key in keys],
            parent_block_hash=None if parent is None else external_hash(parent),
            token_ids=list(tokens),
            block_size=block_size,
            lora_id=adapter[0] if adapter else None,
            medium=_MEDIUM,
            lora_name=adapter[1] if adapter else None,
            extra_keys=extra,
            group_idx=0,
        )
        self._events.append(event)

    def removed(self, key: bytes) -> None:
        """Note an evicted block."""
        if self.is_on:
            self._events.append(BlockRemoved(block_hashes=[external_hash(key)], medium=_MEDIUM, group_idx=0))

    def cleared(self) -> None:
        """Note a reset."""
        if self.is_on:
            self._events.append(AllBlocksCleared())

    def sources(self) -> dict[str, dict[str, Any]]:
        """Return what a subscriber must know, by data-parallel rank; empty when nothing is published."""
        if not self.is_on:
            return {}
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self._replay_endpoint,
            "topic": self._topic.decode(),
        }
        return {"0": source}

    def begin_again(self) -> None:
        """Number batches from 0 and forget the old ones, as a new process would."""
        self._events, self._sequence = [], 0
        self._sent.clear()

    def publish(self) -> None:
        """Send what was noted since the last call as one batch."""
        if not self._events:
            return
        payload = self._encode(EventBatch(ts=time.time(), events=self._events, data_parallel_rank=0))
        self._events = []
        self._publisher.send_multipart((self._topic, self._sequence.to_bytes(8, "big"), payload))
        self._sent.append((self._sequence, payload))
        self._sequence += 1

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, start = frames
            for sequence, payload in list(self._sent):
                if sequence >= int.from_bytes(start, "big"):
                    number = sequence.to_bytes(8, "big")
                    await self._router.send_multipart((client, b"", self._topic, number, payload))
            await self._router.send_multipart((client, b"", b"", _END_OF_REPLAY, b""))

    async def aclose(self) -> None:
        """Close the sockets."""
        if not self.is_on:
            return
        if self._replaying is not None:
            self._replaying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._replaying
            self._router.close(linger=0)
        self._publisher.close(linger=0)
