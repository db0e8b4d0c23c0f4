"""Fixtures for the whole tree: a real Redis server, a client with a key-leak checker, and the folder of real logs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from warmup_tasks.identity import is_permanent
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.connection import connect

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for the session; a test that stops or limits its server starts one of its own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client on an empty server; afterwards each key has a TTL or stands on the list of permanent keys."""
    client = connect(redis_server.url)
    client.flushall()
    yield client
    leaked = leaked_keys(client)
    client.flushall()
    client.close()
    assert not leaked, f"keys without TTL that are not on the list of permanent keys: {leaked}"


@pytest.fixture
def redis_url(redis_server: RedisServer, redis_client: redis.Redis) -> str:
    """The address of the server that ``redis_client`` emptied and checks."""
    return redis_server.url


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real logs: ``WARMUP_TEST_DATA``, or ``shared/data`` beside the repository."""
    folder = Path(os.environ.get("WARMUP_TEST_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real logs at {folder}: set WARMUP_TEST_DATA to a folder that holds them")
    return folder


def leaked_keys(client: redis.Redis) -> list[str]:
    """Return the keys that neither end by themselves nor may live for ever."""
    keys = [key.decode() for key in client.scan_iter(count=1000)]
    return sorted(key for key in keys if client.pttl(key) == -1 and not is_permanent(key))
