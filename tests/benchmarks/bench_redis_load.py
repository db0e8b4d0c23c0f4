"""Loading embeddings from Parquet to the last answer, against ``redis-benchmark -c 1 -P 100`` with the same command.

Both send ``SET key value EX ttl`` with values of 1,536 bytes and keys of one length to one real server, emptied before
each. The store does more on purpose: it reads and checks the file, checks memory, enters its keys into the index that
invalidation needs, and proves that every value is there. Where redis-benchmark is missing and cannot be installed, the
limit is the same commands packed before the clock starts, and the rows say so.
"""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import redis

from tests.benchmarks import harness
from tests.support.redis_tools import redis_tool
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.identity import EmbedderIdentity
from warmup_tasks.local.redis_server import HOST, RedisServer
from warmup_tasks.serving.blocks import EmbeddingFile
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import EmbeddingValue
from warmup_tasks.serving.wire import piped, set_commands

NOW = datetime(2026, 11, 27, 2, tzinfo=UTC)
VALUES = 1_000_000
VALUE_BYTES = 1536
TYPED_VALUES = 20_000
TENANT = "acme"
PARQUET_ROWS = 20_000
RANDOM_DIGITS = "__rand_int__"  # redis-benchmark writes twelve digits here
DEADLINE_S = 300.0
KEYS = 2_000_000_000  # redis-benchmark draws its keys from so many: nearly all are new, as ours are


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Time the file, the limit, and typed values one by one, in turns."""
    count = max(int(VALUES * scale), 1000)
    embedder = fitting_embedder()
    path = out / "embeddings.parquet"
    write_file(path, count, embedder)
    file = EmbeddingFile(path, embedder, tenant=TENANT, created_at=NOW)
    typed = typed_values(min(count, TYPED_VALUES), embedder)
    with RedisServer() as server, connect(server.url) as client:
        store = ValueStore(client)
        key_bytes = len(typed[0].key)
        name, limit = _limit(server, client, file, count, key_bytes)
        contenders = {
            "parquet": lambda: store.load(file, NOW, deadline_s=DEADLINE_S),
            name: limit,
            "typed values": lambda: store.put_many(typed, NOW),
        }
        seconds = harness.in_turns(contenders, repeats=3, prepare=client.flushall)
        _check(client, store, file, typed)
        facts = {"value_bytes": VALUE_BYTES, "key_bytes": key_bytes, "server": client.info("server")["redis_version"]}
    rows = harness.rows_of(seconds, values=count, **facts)
    rows[-1]["values"] = len(typed)
    rows[0]["parquet_bytes"] = path.stat().st_size
    parquet_s, limit_s = median(seconds["parquet"]), median(seconds[name])
    ratio = "ratio_to_redis_benchmark" if "redis-benchmark" in name else "ratio_to_packed_commands"
    headline = {
        ratio: limit_s / parquet_s,
        "values_per_s": count / parquet_s,
        "limit_values_per_s": count / limit_s,
        "typed_values_per_s": len(typed) / median(seconds["typed values"]),
    }
    return harness.result("redis_load", headline, rows)


def fitting_embedder() -> EmbedderIdentity:
    """Return an embedder whose stored values take exactly 1,536 bytes: what JSON leaves goes to the vector."""
    dimensions, name = 300, "e"
    for _ in range(2):
        embedder = EmbedderIdentity(embedder=name, revision="1", dimensions=dimensions)
        left = VALUE_BYTES - len(typed_values(1, embedder)[0].encode())
        dimensions, name = dimensions + left // 4, name + "e" * (left % 4)
    return embedder


def typed_values(count: int, embedder: EmbedderIdentity) -> list[EmbeddingValue]:
    """Return embeddings of one tenant."""
    vectors = np.random.default_rng(7).normal(size=(count, embedder.dimensions))
    return [
        EmbeddingValue.of(
            vector, embedder, item_id=f"{n:032x}", tenant=TENANT, prompt_sha256=f"{n:064x}", created_at=NOW
        )
        for n, vector in enumerate(vectors)
    ]


def write_file(path: Path, count: int, embedder: EmbedderIdentity) -> None:
    """Write a Parquet file of embeddings as a model gives them: random directions."""
    random = np.random.default_rng(7)
    kind = pa.binary(4 * embedder.dimensions)
    schema = pa.schema([("item_id", pa.string()), ("prompt_sha256", pa.string()), ("vector", kind)])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, count, PARQUET_ROWS):
            rows = range(start, min(start + PARQUET_ROWS, count))
            flat = random.standard_normal(len(rows) * embedder.dimensions, dtype=np.float32)
            vectors = pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(flat)])
            writer.write_table(
                pa.table([[f"{n:032x}" for n in rows], [f"{n:064x}" for n in rows], vectors], schema=schema)
            )


def _limit(
    server: RedisServer, client: redis.Redis, file: EmbeddingFile, count: int, key_bytes: int
) -> tuple[str, Callable[[], object]]:
    try:
        program = redis_tool("redis-benchmark")
    except ConfigurationError as error:
        packed = [(set_commands(b.where.prefix, b.suffixes, b.values, b.ttl_s), len(b)) for b in file]
        return f"commands packed beforehand ({error})", lambda: _send_all(client, packed)
    key = "k" * (key_bytes - len(RANDOM_DIGITS)) + RANDOM_DIGITS
    words = ["-h", HOST, "-p", str(server.port), "-n", str(count), "-r", str(KEYS), "-P", "100", "-c", "1", "-q"]
    command = [program, *words, "SET", key, "x" * VALUE_BYTES, "EX", "86400"]
    return "redis-benchmark -c 1 -P 100", lambda: subprocess.run(command, capture_output=True, check=True)


def _send_all(client: redis.Redis, packed: list[tuple[memoryview, int]]) -> None:
    with piped(client, 1000) as pipe:
        for commands, answers in packed:
            pipe.send(commands, answers=answers)
        pipe.settle()


def _check(client: redis.Redis, store: ValueStore, file: EmbeddingFile, typed: list[EmbeddingValue]) -> None:
    client.flushall()
    store.load(file, NOW, deadline_s=DEADLINE_S)
    key = typed[0].key
    if client.dbsize() != len(file) + 2 or client.strlen(key) != VALUE_BYTES or client.ttl(key) <= 0:
        raise RuntimeError("the load did not leave what it promises: each value once, of its size, with a TTL")
