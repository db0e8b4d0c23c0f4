"""KV events on a real ZeroMQ socket, decoded by their layout alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from warmup_tasks.engines.double.process import start_double


class Events:
    """A double, a subscriber that is connected to it, and its replay socket."""

    def __init__(self, client: httpx.Client, subscriber: zmq.Socket, replays: zmq.Socket) -> None:
        self.client = client
        self._subscriber = subscriber
        self._replays = replays

    def next_batch(self) -> tuple[int, list[Any]]:
        assert self._subscriber.poll(5000)
        _, sequence, payload = self._subscriber.recv_multipart()
        return int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)

    def replay(self, start: int) -> list[int]:
        self._replays.send_multipart((b"", start.to_bytes(8, "big")))
        numbers = []
        while True:
            assert self._replays.poll(5000)
            *_, sequence, payload = self._replays.recv_multipart()
            if not payload:
                return numbers
            numbers.append(int.from_bytes(sequence, "big"))

    def complete(self, prompt: list[int], **fields: object) -> None:
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0} | fields
        assert self.client.post("/v1/completions", json=body).status_code == 200


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Events]:
    endpoints = [f"ipc://{tmp_path}/{name}" for name in ("events", "replay")]
    context = zmq.Context()
    subscriber, replays = context.socket(zmq.XSUB), context.socket(zmq.DEALER)
    with (
        start_double(
            developer_mode=True,
            time_scale=0,
            num_gpu_blocks=9,
            max_model_len=128,
            kv_events_endpoint=endpoints[0],
            kv_events_replay_endpoint=endpoints[1],
        ) as double,
        httpx.Client(base_url=double.url, timeout=10) as client,
    ):
        subscriber.connect(endpoints[0])
        subscriber.send(b"\x01")
        replays.connect(endpoints[1])
        running = Events(client, subscriber, replays)
        _until_subscribed(running, subscriber)
        yield running
        subscriber.close(0)
        replays.close(0)
        context.term()


def _until_subscribed(running: Events, subscriber: zmq.Socket) -> None:
    """A subscription takes effect some time after it was sent: clear the cache until an event comes through."""
    for _ in range(200):
        running.client.post("/double/restart")
        running.client.post("/reset_prefix_cache")
        if subscriber.poll(25):
            break
    while subscriber.poll(25):
        subscriber.recv_multipart()
    running.client.post("/double/restart")


def test_stored_removed_cleared(events: Events) -> None:
    events.complete(list(range(40)), cache_salt="s")
    sequence, (_, (stored,), rank) = events.next_batch()
    assert (sequence, rank) == (0, 0)
    assert stored["type"] == "BlockStored"
    assert stored["parent_block_hash"] is None
    assert stored["token_ids"] == list(range(32))
    assert (stored["block_size"], stored["medium"], stored["lora_name"]) == (16, "GPU", None)
    assert stored["extra_keys"] == [["s"], None]
    assert len(set(stored["block_hashes"])) == 2

    events.complete(list(range(1000, 1120)))
    _, (_, second, _) = events.next_batch()
    kinds = [event["type"] for event in second]
    assert kinds.count("BlockRemoved") == 2
    removed = [event["block_hashes"][0] for event in second if event["type"] == "BlockRemoved"]
    assert removed == stored["block_hashes"][::-1]

    events.client.post("/reset_prefix_cache")
    assert events.next_batch()[1][1] == [{"type": "AllBlocksCleared"}]
    assert events.replay(1) == [1, 2]


def test_continued_prompt_names_its_parent(events: Events) -> None:
    events.complete(list(range(17)))
    first = events.next_batch()[1][1][0]
    events.complete(list(range(40)))
    second = events.next_batch()[1][1][0]
    assert second["parent_block_hash"] == first["block_hashes"][-1]
    assert second["token_ids"] == list(range(16, 32))


def test_adapter_is_named(events: Events, write_adapter: Callable[..., str]) -> None:
    events.client.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": write_adapter("a")})
    events.complete(list(range(20)), model="a")
    stored = events.next_batch()[1][1][0]
    assert (stored["lora_name"], stored["extra_keys"]) == ("a", [["a"]])


def test_sources_are_told(events: Events) -> None:
    source = events.client.get("/kv_event_sources").json()["0"]
    assert source["publisher"] == "zmq"
    assert source["endpoint"].startswith("ipc://")
