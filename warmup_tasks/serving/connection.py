"""How this system talks to Redis: one client with time limits, and Redis' errors in the words of ``errors.py``.

Here live the connection, by URL to one server, a service behind sentinels or a cluster, and the mapping of errors. What
is stored lives in the modules beside this one. A password comes with the URL and goes nowhere else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.cluster import ClusterNode
from redis.connection import parse_url
from redis.exceptions import RedisClusterException
from redis.retry import Retry
from redis.sentinel import Sentinel

from warmup_tasks.errors import ConfigurationError, GiveUpError, RetryLaterError

CLIENT_NAME = "warmup-tasks"
EXAMPLES = "redis://127.0.0.1:6379/0, redis+cluster://a:6379,b:6379 or redis+sentinel://a:26379,b:26379/service"
_DEFAULT_PORTS = {"cluster": 6379, "sentinel": 26379}
_AWAY = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.BusyLoadingError,
    redis.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.AskError,
    redis.exceptions.ClusterError,
    RedisClusterException,
)
_REFUSED = (
    redis.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)


class Node(NamedTuple):
    """One server that holds keys: its name (empty where there is but one) and a client of its own."""

    name: str
    client: redis.Redis


def connect(url: str, *, timeout_s: float = 5.0, attempts: int = 3) -> redis.Redis:
    """Return a client that answers in bytes; it connects on first use, to a cluster at once.

    A cluster's client is another class of redis-py with the same commands; one that touches several keys at once works
    there only for keys of one slot (``identity.py`` names them so), a pipeline for any.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://`` for one server, with the database number where it is not
            0; ``redis+cluster://`` with some of the nodes; ``redis+sentinel://`` with the sentinels and the service's
            name as path. ``rediss+…`` for TLS. User and password stand before the ``@``, options of redis-py behind
            the ``?`` (``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``, ``db``, ``sentinel_username``, …).
        timeout_s: limit of every single answer and of connecting.
        attempts: how often a call that lost its connection is tried, with growing pauses; every call that this
            package makes may be repeated.

    Raises:
        ConfigurationError: the URL cannot be read.
        RetryLaterError: no node of the cluster answers.
    """
    limits = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "client_name": CLIENT_NAME}
    limits |= {"health_check_interval": 30, "protocol": 2}
    retry = Retry(ExponentialBackoff(cap=1.0, base=0.05), attempts - 1)
    patience = {"retry": retry, "retry_on_error": [redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError]}
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    try:
        if not kind:
            return redis.Redis.from_url(url, **limits, **patience)
        hosts, options = _parts(url, scheme, kind)
        if kind == "cluster":
            return _cluster(hosts, {**limits, **options}, retry)
        return _sentinel(hosts, urlsplit(url).path.strip("/"), {**limits, **options}, patience)
    except ValueError as error:
        # The text of a failed number quotes what stood there: with a stray "/" or "@", part of a password.
        said = "the port is no number" if "ort" in str(error) else str(error)
        raise ConfigurationError(f"Redis URL: {said}; write for instance {EXAMPLES}") from None


def nodes(client: redis.Redis | redis.RedisCluster) -> list[Node]:
    """Return the servers that take writes: one, or a cluster's primaries."""
    if isinstance(client, redis.RedisCluster):
        return [Node(node.name, client.get_redis_connection(node)) for node in client.get_primaries()]
    return [Node("", client)]


def node_of(client: redis.Redis | redis.RedisCluster, key: str) -> Node:
    """Return the server that holds a key."""
    if isinstance(client, redis.RedisCluster):
        node = client.get_node_from_key(key)
        return Node(node.name, client.get_redis_connection(node))
    return Node("", client)


def refresh_nodes(client: redis.Redis | redis.RedisCluster) -> None:
    """Learn anew which node of a cluster holds what."""
    if isinstance(client, redis.RedisCluster):
        client.nodes_manager.initialize()


@contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """Turn Redis' errors into ours; ``doing`` says what was under way, such as "writing marks".

    Raises:
        RetryLaterError: Redis is away, loading, or failing over.
        GiveUpError: Redis has no memory left, refuses the credentials, or refuses the command.
    """
    try:
        yield
    except _REFUSED as error:
        raise GiveUpError(f"{doing}: Redis refuses these credentials ({_brief(error)})") from error
    except _AWAY as error:
        raise RetryLaterError(f"{doing}: Redis does not answer ({_brief(error)})") from error
    except redis.exceptions.OutOfMemoryError as error:
        raise GiveUpError(
            f"{doing}: Redis has reached its maxmemory and stopped here; raise maxmemory or plan fewer items"
        ) from error
    except redis.RedisError as error:
        raise GiveUpError(f"{doing}: Redis refuses ({_brief(error)})") from error


def _cluster(hosts: list[tuple[str, int]], options: dict[str, Any], retry: Retry) -> redis.Redis:
    with store_errors("connecting to the cluster"):
        found = redis.RedisCluster(startup_nodes=[ClusterNode(*host) for host in hosts], retry=retry, **options)
    return cast("redis.Redis", found)


def _sentinel(
    hosts: list[tuple[str, int]], service: str, options: dict[str, Any], patience: dict[str, Any]
) -> redis.Redis:
    if not service:
        raise ValueError("the path must name the sentinels' service")
    own = {name.removeprefix("sentinel_"): options.pop(name) for name in list(options) if name.startswith("sentinel_")}
    shared = {name: value for name, value in options.items() if name.startswith(("ssl", "socket_", "protocol"))}
    sentinel = Sentinel(hosts, sentinel_kwargs={**shared, **own})
    return cast("redis.Redis", sentinel.master_for(service, **options, **patience))


def _parts(url: str, scheme: str, kind: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Return the hosts of a URL that names several, and the options that hold for each of them."""
    if kind not in _DEFAULT_PORTS or scheme not in ("redis", "rediss"):
        raise ValueError(f"{scheme}+{kind} is no scheme")
    parts = urlsplit(url)
    login, at, addresses = parts.netloc.rpartition("@")
    hosts = [
        (host.hostname or "", host.port or _DEFAULT_PORTS[kind])
        for host in (urlsplit(f"//{address}") for address in addresses.split(","))
    ]
    if not all(name for name, _ in hosts):
        raise ValueError("a host is missing")
    query = urlencode(parse_qsl(parts.query))
    options = parse_url(f"{scheme}://{login}{at}{hosts[0][0]}/?{query}")
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    return hosts, {**options, "ssl": scheme == "rediss"} if scheme == "rediss" else options


def _brief(error: Exception) -> str:
    # Redis quotes arguments of refused commands behind the first line; arguments may hold prompts.
    words = str(error).splitlines()
    return f"{type(error).__name__}: {words[0][:120]}" if words else type(error).__name__
