"""Subscribes to vLLM's KV events: zmq frames in, :class:`KvEvent` out. The picture is ``cache_picture.py``'s matter.

Frames are topic, sequence number (8 bytes, big-endian) and a msgpack batch ``[time, events, ...]``. An event is a map
with a ``type``, in older versions an array that begins with it. vLLM publishes on an address that it *binds* only where
the endpoint has a ``*``, ``tcp://*:5557``.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from warmup_tasks.engines.base import KvEvent
from warmup_tasks.errors import RetryLaterError

logger = logging.getLogger(__name__)

_FRAMES = 3
_REPLAY_DEADLINE_S = 5.0
_GPU = (None, "GPU")
_KINDS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
_ARRAY_FIELDS = {"BlockStored": ("block_hashes", "parent_block_hash", "token_ids"), "BlockRemoved": ("block_hashes",)}


async def subscribe(endpoint: str) -> AsyncGenerator[KvEvent, None]:
    """Yield events from now on, for as long as the caller listens.

    A gap in the sequence numbers yields one event of the kind ``lost``: what was known of the cache no longer holds.
    So does a number that falls: the engine has restarted.

    Args:
        endpoint: zmq address of the publisher, such as ``tcp://host:5557``.
    """
    expected: int | None = None
    with _socket(zmq.SUB, endpoint) as live:
        while True:
            sequence, payload = await _message(live, endpoint)
            if expected is not None and sequence != expected:
                logger.warning("KV events of %s: expected message %d, got %d", endpoint, expected, sequence)
                yield KvEvent(kind="lost")
            expected = sequence + 1
            for event in decode(payload):
                yield event


async def follow(endpoint: str, replay_endpoint: str) -> AsyncGenerator[KvEvent, None]:
    """Yield the events that the engine still holds, then one of the kind ``current``, then those from now on.

    A gap is filled by asking for what is missing. Where that is gone, or the engine has restarted, one event of the
    kind ``lost`` says so, and the stream ends.

    Args:
        endpoint: zmq address of the publisher.
        replay_endpoint: zmq address where it sends old messages again.

    Raises:
        RetryLaterError: nothing answers there.
    """
    expected, last_live = 0, -1
    with _socket(zmq.SUB, endpoint) as live, _socket(zmq.DEALER, replay_endpoint) as old:
        async for sequence, payload in _replayed(old, None):
            expected = sequence + 1
            for event in decode(payload):
                yield event
        yield KvEvent(kind="current")
        while True:
            sequence, payload = await _message(live, endpoint)
            has_restarted, last_live = sequence <= last_live, sequence
            if sequence < expected and not has_restarted:
                continue  # the replay has brought it already
            if sequence > expected and not has_restarted:
                async for number, missed in _replayed(old, expected):
                    expected = number + 1
                    for event in decode(missed):
                        yield event
            if has_restarted or expected < sequence:
                yield KvEvent(kind="lost")
                return
            if expected == sequence:
                expected += 1
                for event in decode(payload):
                    yield event


@contextmanager
def _socket(kind: int, endpoint: str) -> Iterator[zmq.asyncio.Socket]:
    socket = zmq.asyncio.Context.instance().socket(kind)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoint)
        yield socket
    finally:
        socket.close()


async def _message(live: zmq.asyncio.Socket, endpoint: str) -> tuple[int, bytes]:
    """Return number and payload of the next message."""
    while True:
        frames = await live.recv_multipart()
        if len(frames) == _FRAMES:
            return int.from_bytes(frames[1], "big"), frames[2]
        logger.warning("KV events of %s: a message of %d frames is left out", endpoint, len(frames))


async def _replayed(old: zmq.asyncio.Socket, start: int | None) -> AsyncIterator[tuple[int, bytes]]:
    """Yield old messages without a gap, from ``start`` or from the oldest that is there.

    An engine that sends faster than its socket takes drops messages: what is missing is asked for again, for as long as
    that brings something.
    """
    is_torn = has_come = True
    while is_torn and has_come:
        is_torn = has_come = False
        await old.send_multipart((b"", (start or 0).to_bytes(8, "big")))
        while True:
            try:
                async with asyncio.timeout(_REPLAY_DEADLINE_S):
                    *_, number, payload = await old.recv_multipart()
            except TimeoutError:
                raise RetryLaterError(f"old KV events: no answer within {_REPLAY_DEADLINE_S:g} s") from None
            if not payload:
                break
            sequence = int.from_bytes(number, "big")
            if start is None or sequence == start:
                start, has_come = sequence + 1, True
                yield sequence, payload
            elif sequence > start:
                is_torn = True


def decode(payload: bytes) -> list[KvEvent]:
    """Return the events of one msgpack batch; left out are unknown kinds, and what happens outside GPU memory."""
    batch = msgspec.msgpack.decode(payload)
    raw = batch.get("events", ()) if isinstance(batch, dict) else batch[1]
    return [event for event in map(_event, raw) if event is not None]


def _event(raw: Any) -> KvEvent | None:
    fields: dict[str, Any]
    if isinstance(raw, dict):
        name, fields = raw.get("type"), raw
    else:
        name, fields = raw[0], dict(zip(_ARRAY_FIELDS.get(raw[0], ()), raw[1:], strict=False))
    if name not in _KINDS or fields.get("medium") not in _GPU:
        return None
    return KvEvent(
        kind=_KINDS[name],
        block_hashes=tuple(fields.get("block_hashes") or ()),
        token_ids=tuple(fields.get("token_ids") or ()),
        parent=fields.get("parent_block_hash"),
        extra_keys=tuple(tuple(keys) if keys else () for keys in fields.get("extra_keys") or ()),
        group=fields.get("group_idx") or 0,
    )
