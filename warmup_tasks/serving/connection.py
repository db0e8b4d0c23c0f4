"""How this system talks to Redis: one client with time limits, and Redis' errors in the words of ``errors.py``.

Here live the connection and the mapping of errors. What is stored lives in the modules beside this one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from warmup_tasks.errors import ConfigurationError, GiveUpError, RetryLaterError

CLIENT_NAME = "warmup-tasks"
_AWAY = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.BusyLoadingError,
    redis.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)
_REFUSED = (
    redis.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.NoPermissionError,
)


def connect(url: str, *, timeout_s: float = 5.0, attempts: int = 3) -> redis.Redis:
    """Return a client for ``redis://``, ``rediss://`` or ``unix://``; it connects on first use and answers in bytes.

    Args:
        url: of the server, with the database number where it is not 0.
        timeout_s: limit of every single answer and of connecting.
        attempts: how often a call that lost its connection is tried, with growing pauses; every call that this
            package makes may be repeated.

    Raises:
        ConfigurationError: the URL cannot be read.
    """
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), attempts - 1),
            retry_on_error=[redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError],
            health_check_interval=30,
            client_name=CLIENT_NAME,
        )
    except ValueError as error:
        raise ConfigurationError(f"Redis URL: {error}; write for instance redis://127.0.0.1:6379/0") from None


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


def _brief(error: Exception) -> str:
    # Redis quotes arguments of refused commands behind the first line; arguments may hold prompts.
    words = str(error).splitlines()
    return f"{type(error).__name__}: {words[0][:120]}" if words else type(error).__name__
