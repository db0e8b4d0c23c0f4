"""Writing default responses through the value store, against the fastest plain SET … EX of the same keys and sizes.

The limit is ``redis-benchmark`` where it is on the PATH (same value size, pipelined), else commands packed by hand
before the clock starts and sent over one socket. The store does more on purpose: it checks memory, indexes its keys
for invalidation, and proves that every value is there.
"""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import redis

from tests.benchmarks import harness
from warmup_tasks.local.redis_server import HOST, RedisServer
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import ResponseValue

NOW = datetime(2026, 11, 27, 2, tzinfo=UTC)
VALUES = 20_000
TEXT_CHARACTERS = 1200
TTL_S = "43200"
BATCH = 500


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Time both, in turns, on one real server that is emptied before each."""
    values = make_values(max(int(VALUES * scale), 100))
    with RedisServer() as server, connect(server.url) as client:
        store = ValueStore(client)
        sizes = [len(value.encode()) for value in values]
        limit, load = _limit(server, client, values, round(sum(sizes) / len(sizes)))

        def put() -> None:
            client.flushall()
            store.put_many(values, NOW)

        seconds = harness.in_turns({"store": put, limit: load}, repeats=3)
    store_s, limit_s = median(seconds["store"]), median(seconds[limit])
    headline = {
        "values_per_s": len(values) / store_s,
        "limit_values_per_s": len(values) / limit_s,
        "store_per_limit": store_s / limit_s,
    }
    facts = {"values": len(values), "mean_value_bytes": sum(sizes) / len(sizes)}
    return harness.result("redis_load", headline, harness.rows_of(seconds, **facts))


def make_values(count: int) -> list[ResponseValue]:
    """Return responses of one tenant and identity with texts of random letters."""
    letters = np.random.default_rng(7).integers(97, 123, (count, TEXT_CHARACTERS), dtype=np.uint8)
    return [
        ResponseValue(
            tenant="acme", identity_digest="ab" * 32, created_at=NOW, model="m", adapter=None,
            item_id=f"{n:032x}", prompt_sha256=f"{n:064x}",
            text=letters[n].tobytes().decode(),
        )
        for n in range(count)
    ]  # fmt: skip


def _limit(server: RedisServer, client: redis.Redis, values: Sequence[ResponseValue], size: int):
    program = shutil.which("redis-benchmark")
    if program:
        return "redis-benchmark -P 100", lambda: _redis_benchmark(program, server, len(values), size)
    batches = pack(values)

    def send() -> None:
        client.flushall()
        send_all(server.port, batches)

    return "packed by hand, one socket", send


def _redis_benchmark(program: str, server: RedisServer, count: int, size: int) -> float:
    words = ["-h", HOST, "-p", str(server.port), "-n", str(count), "-r", str(count), "-P", "100", "-c", "4", "-q"]
    text = "x" * size
    done = subprocess.run(
        [program, *words, "SET", "resp:__rand_int__", text, "EX", TTL_S], capture_output=True, text=True, check=True
    )
    return float(re.findall(r"([\d.]+) requests per second", done.stdout)[-1])


def pack(values: Sequence[ResponseValue]) -> list[tuple[bytes, int]]:
    """Return ``SET key value EX ttl`` commands in batches, as they go over the wire, with their number."""
    commands = []
    for value in values:
        parts = [b"SET", value.key.encode(), value.encode(), b"EX", TTL_S.encode()]
        commands.append(b"*5\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
    batches = [commands[start : start + BATCH] for start in range(0, len(commands), BATCH)]
    return [(b"".join(batch), len(batch)) for batch in batches]


def send_all(port: int, batches: Sequence[tuple[bytes, int]], deadline_s: float = 60.0) -> None:
    """Send the batches and read their ``+OK`` answers; raises when an answer is another one."""
    with socket.create_connection((HOST, port), timeout=deadline_s) as connection:
        give_up_at = time.monotonic() + deadline_s
        for batch, count in batches:
            connection.sendall(batch)
            answer = b""
            while len(answer) < 5 * count and time.monotonic() < give_up_at:
                answer += connection.recv(1 << 16)
            if answer != b"+OK\r\n" * count:
                raise redis.RedisError("the server refused a plain SET")
