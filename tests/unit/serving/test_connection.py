import pytest
import redis

from warmup_tasks.errors import ConfigurationError, GiveUpError, RetryLaterError
from warmup_tasks.identity import is_permanent
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.serving.connection import connect, store_errors


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://127.0.0.1:6379", "redis://127.0.0.1:port/0"])
def test_a_url_that_is_none_is_refused_with_an_example(url):
    with pytest.raises(ConfigurationError, match=r"redis://127\.0\.0\.1:6379/0"):
        connect(url)


def test_nobody_there_is_worth_another_try():
    with pytest.raises(RetryLaterError, match="asking: Redis does not answer"), store_errors("asking"):
        connect("redis://127.0.0.1:1/0", attempts=2, timeout_s=0.5).ping()


def test_refused_credentials_and_commands_are_not():
    with RedisServer() as server:
        connect(server.url).config_set("requirepass", "right")
        wrong = server.url.replace("redis://", "redis://:wrong@")
        with pytest.raises(GiveUpError, match="credentials"), store_errors("asking"):
            connect(wrong).ping()
        with pytest.raises(GiveUpError, match="credentials"), store_errors("asking"):
            connect(server.url).ping()
        right = connect(server.url.replace("redis://", "redis://:right@"))
        right.set("text", "a secret")
        with pytest.raises(GiveUpError, match="refuses") as refused, store_errors("asking"):
            right.hget("text", "a secret")
        assert "secret" not in str(refused.value)


def test_a_full_server_says_what_to_raise():
    with RedisServer(maxmemory_bytes=1) as server:
        client = connect(server.url)
        with pytest.raises(GiveUpError, match="raise maxmemory"), store_errors("writing"):
            client.set("one more", b"x")


def test_only_adapter_entries_and_the_list_of_namespaces_are_permanent():
    space = "wt1:{!none:" + "a" * 32 + "}:"
    assert is_permanent(f"{space}lora:m:a")
    assert is_permanent("wt1:namespaces")
    for key in (f"{space}emb:x", f"{space}mark:lora:x", f"{space}index", "wt1:epoch:lora:", "lora:m:a", "x"):
        assert not is_permanent(key)


def test_the_leak_checker_sees_a_key_without_ttl(redis_client, leaked_keys):
    redis_client.set("forgotten", 1)
    assert leaked_keys(redis_client) == ["forgotten"]
    redis_client.delete("forgotten")


@pytest.fixture
def leaked_keys(request):
    """The checker of the root conftest."""
    plugin = next(p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "leaked_keys"))
    return plugin.leaked_keys


def test_values_come_back_as_bytes(redis_server):
    client = connect(redis_server.url)
    client.set("b", b"\xff\x00", ex=5)
    assert client.get("b") == b"\xff\x00"
    assert isinstance(client, redis.Redis)
    client.delete("b")
