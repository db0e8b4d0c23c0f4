"""Child processes that end with their parent: own process group, output to a file, a wait with a deadline.

Every process that the local run or a test starts goes through here. What the process is lies with the caller.
"""

import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from warmup_tasks.errors import GiveUpError

STOP_GRACE_S = 10.0


def free_port() -> int:
    """Return a TCP port on the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service(ABC):
    """What is started and stopped. As a context manager it is stopped where its start fails, too."""

    @abstractmethod
    def start(self) -> Self:
        """Start it, and wait until it serves."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and leave nothing behind; stopping twice is fine."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass
class Process:
    """A started child in a process group of its own; use as a context manager."""

    name: str
    popen: subprocess.Popen[bytes]
    log_path: Path

    @property
    def pid(self) -> int:
        """The child's process id, which is also its group's."""
        return self.popen.pid

    @property
    def is_running(self) -> bool:
        """Whether the child still runs."""
        return self.popen.poll() is None

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End the whole group: SIGTERM, then SIGKILL after the grace. Stopping twice is fine."""
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(grace_s)
        self.kill()  # children that outlive their parent, too

    def kill(self) -> None:
        """End the whole group at once, as a lost machine would."""
        self.signal(signal.SIGKILL)
        self.popen.wait(STOP_GRACE_S)

    def signal(self, signal_number: int) -> None:
        """Send a signal to the whole group; a group that is gone counts as told."""
        with suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal_number)

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the child's output."""
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def wait_until(self, is_up: Callable[[], bool], deadline_s: float, pause_s: float = 0.05) -> None:
        """Wait until ``is_up`` says so.

        Raises:
            GiveUpError: the child ended, or the deadline passed; the message carries the end of its output.
        """
        end = time.monotonic() + deadline_s
        while not is_up():
            if not self.is_running:
                raise GiveUpError(f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}")
            if time.monotonic() > end:
                self.stop()
                raise GiveUpError(
                    f"{self.name} was not up within {deadline_s:.0f} s; see {self.log_path}\n{self.tail()}"
                )
            time.sleep(pause_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    name: str,
    command: Sequence[str],
    log_path: Path,
    env: Mapping[str, str] | None = None,
    *,
    user: str | None = None,
    append: bool = False,
) -> Process:
    """Start a child with its output in ``log_path``.

    Args:
        name: for messages.
        command: program and arguments.
        log_path: overwritten; its folder is created.
        env: the child's whole environment; None hands on ours.
        user: whom the child runs as; None is whoever runs this.
        append: keep what an earlier child wrote.

    Raises:
        GiveUpError: the program does not exist.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab" if append else "wb") as log:
        try:
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
                user=user,
                extra_groups=None if user is None else [],
            )
        except FileNotFoundError:
            raise GiveUpError(f"{name}: {command[0]} is not installed") from None
    return Process(name, popen, log_path)
