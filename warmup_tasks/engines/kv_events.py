"""Subscribes to vLLM's KV events: zmq frames in, :class:`KvEvent` out. Keeps no picture of the cache.

Frames are topic, sequence number (8 bytes, big-endian) and a msgpack batch ``[time, events, ...]``. An event is a map
with a ``type``, in older versions an array that begins with it. vLLM publishes on an address that it *binds* only where
the endpoint has a ``*``, ``tcp://*:5557``.
"""

import logging
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from warmup_tasks.engines.base import KvEvent

logger = logging.getLogger(__name__)

_KINDS = {"BlockStored": "stored", "BlockRemoved": "removed", "AllBlocksCleared": "cleared"}
_ARRAY_FIELDS = {"BlockStored": ("block_hashes", "parent_block_hash", "token_ids"), "BlockRemoved": ("block_hashes",)}


async def subscribe(endpoint: str) -> AsyncGenerator[KvEvent, None]:
    """Yield events from now on, for as long as the caller listens.

    A gap in the sequence numbers yields one event of the kind ``lost``: what was known of the cache no longer holds.
    So does a number that falls: the engine has restarted.

    Args:
        endpoint: zmq address of the publisher, such as ``tcp://host:5557``.
    """
    socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    expected: int | None = None
    try:
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3:
                logger.warning("KV events of %s: a message of %d frames is left out", endpoint, len(frames))
                continue
            sequence = int.from_bytes(frames[1], "big")
            if expected is not None and sequence != expected:
                logger.warning("KV events of %s: expected message %d, got %d", endpoint, expected, sequence)
                yield KvEvent(kind="lost")
            expected = sequence + 1
            for event in decode(frames[2]):
                yield event
    finally:
        socket.close()


def decode(payload: bytes) -> list[KvEvent]:
    """Return the events of one msgpack batch; kinds that are unknown here are left out."""
    batch = msgspec.msgpack.decode(payload)
    raw = batch.get("events", ()) if isinstance(batch, dict) else batch[1]
    return [event for event in map(_event, raw) if event is not None]


def _event(raw: Any) -> KvEvent | None:
    fields: dict[str, Any]
    if isinstance(raw, dict):
        name, fields = raw.get("type"), raw
    else:
        name, fields = raw[0], dict(zip(_ARRAY_FIELDS.get(raw[0], ()), raw[1:], strict=False))
    if name not in _KINDS:
        return None
    return KvEvent(
        kind=_KINDS[name],
        block_hashes=tuple(fields.get("block_hashes") or ()),
        token_ids=tuple(fields.get("token_ids") or ()),
        parent=fields.get("parent_block_hash"),
    )
