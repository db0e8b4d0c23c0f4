"""An invalidation that is cut off after any of its Redis commands: nothing wrong is readable, calling again ends it."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis

from warmup_tasks.errors import RetryLaterError
from warmup_tasks.identity import IdentityField
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.invalidate import Invalidator
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.reader import Hit, ReaderClient
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore
from warmup_tasks.serving.store import ValueStore


class Cut(redis.Connection):
    """A connection that is lost once so many answers have come in: what was asked has been done."""

    left: float = float("inf")

    def read_response(self, *args, **kwargs):
        answer = super().read_response(*args, **kwargs)
        if Cut.left <= 0:
            self.disconnect()
            raise redis.ConnectionError("cut")
        Cut.left -= 1
        return answer


@pytest.fixture
def cut_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    host, port = redis_server.url.removeprefix("redis://").split("/")[0].split(":")
    pool = redis.ConnectionPool(
        connection_class=Cut,
        host=host,
        port=int(port),
        protocol=2,
        retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    )
    Cut.left = float("inf")
    with redis.Redis(connection_pool=pool) as client:
        client.ping()
        yield client
    Cut.left = float("inf")


REACHES = {
    "adapter": {"adapter": "sql"},
    "embedder": {"embedder": "e"},
    "item": {"item_id": "prefix"},
    "model": {"model": "m", "weights_revision": "r1"},
}


@pytest.mark.parametrize("event", REACHES)
def test_cut_off_anywhere_it_leaves_nothing_wrong_and_ends_when_called_again(
    redis_client, cut_client, make_response, make_embedding, make_mark, mark_of, identity, embedder, now, event
):
    lora = identity.for_adapter("sql", IdentityField(declared="1"))
    reach = Reach(**{**REACHES[event], **({"item_id": "c" * 32} if event == "item" else {})})
    values = {
        "answer": make_response("a"),
        "lora answer": make_response("a", identity=lora),
        "embedding": make_embedding("a"),
    }
    book = [identity, lora, embedder]

    def fill() -> dict[str, MarkAddress]:
        redis_client.flushall()
        marks = {n: mark_of(v, embedder_digest=embedder.digest() if "answer" in n else None) for n, v in values.items()}
        marks["prefix"] = make_mark(item_id="b" * 32)
        marks["lora prefix"] = make_mark(item_id="c" * 32, adapter="sql", identity_digest=lora.digest())
        IdentityBook(redis_client).remember(book)
        ValueStore(redis_client).put_many(list(values.values()), now)
        MarkStore(redis_client).put_many(list(marks.values()), now)
        record = ReadinessRecord(
            model="m", replica="r0", run_id="run", as_of=now, epoch="e1", identity_digest=identity.digest(),
            planned=2, ready=2, share=1.0, is_ready=True, expires_at=now + timedelta(hours=1),
        )  # fmt: skip
        ReadinessStore(redis_client).put(record, now)
        return {name: MarkAddress.of(mark) for name, mark in marks.items()}

    def readable() -> set[str]:
        reader = ReaderClient(redis_client)
        found = {
            "answer": reader.response(None, identity, values["answer"].prompt_sha256),
            "lora answer": reader.response(None, lora, values["lora answer"].prompt_sha256),
            "embedding": reader.embedding(None, embedder, values["embedding"].prompt_sha256),
        }
        return {name for name, answer in found.items() if isinstance(answer, Hit)}

    addresses = fill()
    Invalidator(redis_client).invalidate(reach, now=now)
    standing = {name for name, address in addresses.items() if redis_client.exists(address.key)}
    state = _state(redis_client)
    cuts = 0
    while True:
        addresses = fill()
        work = Invalidator(cut_client)
        cut_client.ping()
        Cut.left = cuts
        try:
            work.invalidate(reach, now=now)
        except RetryLaterError:
            Cut.left = float("inf")
        else:
            break
        marked = {name for name, address in addresses.items() if redis_client.exists(address.key)}
        assert standing <= marked, "what the event does not reach keeps its mark"
        assert readable() <= marked
        gone = {name for name, value in values.items() if not redis_client.exists(value.key)}
        if gone:
            assert marked == standing, "no value goes before every mark is void"
        record = ReadinessStore(redis_client).read("m", "r0")
        if record is not None:
            assert record.ready <= len(marked & {"prefix", "lora prefix"}), "readiness never claims more than marks do"
        Invalidator(redis_client).invalidate(reach, now=now)
        left = {key for key in _state(redis_client) ^ state if b"readiness" not in key}
        orphans = {
            value.key.encode() for value in values.values()
        }  # nothing vouches for them, and they end by themselves
        assert left <= orphans
        assert all(redis_client.ttl(key) > 0 for key in left)
        assert readable() <= standing
        cuts += 1
    Cut.left = float("inf")
    assert cuts > 8
    assert _state(redis_client) == state


def _state(client: redis.Redis) -> set[bytes]:
    return set(client.scan_iter(count=1000))
