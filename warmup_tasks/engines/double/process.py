"""Starting a double as a process of its own, for tests and the local runner.

Here lives start and stop. The new process shares nothing with the starting one but a listening socket.
"""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Self

from warmup_tasks.engines.double.config import DoubleConfig, command
from warmup_tasks.errors import RetryLaterError

START_DEADLINE_S = 20.0
_STOP_DEADLINE_S = 5.0


class DoubleProcess:
    """A running double. Use as a context manager, or call :meth:`stop`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, config: DoubleConfig) -> None:
        self._process = process
        self.url = url
        self.config = config

    @property
    def pid(self) -> int:
        """The process id, which is also its group's."""
        return self._process.pid

    def stop(self) -> None:
        """End the process group; a second call does nothing."""
        if self._process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
        try:
            self._process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def kill(self) -> None:
        """End it the hard way, as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_double(port: int = 0, *, deadline_s: float = START_DEADLINE_S, **settings: Any) -> DoubleProcess:
    """Start a double and wait until it is healthy.

    Args:
        port: 0 lets the system choose.
        deadline_s: how long to wait for ``/health``.
        settings: fields of :class:`DoubleConfig`.

    Raises:
        RetryLaterError: it ended or did not answer in time; the message carries the end of its output.
    """
    listener = socket.create_server(("127.0.0.1", port))
    host, bound = listener.getsockname()[:2]
    config = DoubleConfig(port=bound, fd=listener.fileno(), exit_with_parent=True, **settings)
    with tempfile.TemporaryFile() as output, listener:
        process = subprocess.Popen(
            command(config), pass_fds=[listener.fileno()], start_new_session=True, stdout=output, stderr=output
        )
        listener.close()
        double = DoubleProcess(process, f"http://{host}:{bound}", config)
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline and process.poll() is None:
            if _is_healthy(double.url, deadline - time.monotonic()):
                return double
        double.kill()
        output.seek(0)
        tail = output.read()[-2000:].decode(errors="replace")
    raise RetryLaterError(f"the double did not become healthy within {deadline_s} s\n{tail}")


def _is_healthy(url: str, timeout_s: float) -> bool:
    # The socket listens before the process does, so this waits in the connection's queue instead of polling.
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=max(0.1, timeout_s)) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
