"""LiteLLM's spend logs straight from Postgres, as a file of JSON lines: ``postgresql://user@host/database`` as log.

A file system in the sense of fsspec, with one file in it, so that a database is read by the same code as an export.
Rows come through a cursor of the server, in one read-only snapshot, ordered by time. The address is libpq's; a password
may also stand in ``PGPASSWORD`` or ``~/.pgpass``.
"""

from collections.abc import Generator
from typing import Any, Self
from urllib.parse import urlsplit

import fsspec

from warmup_tasks.errors import ConfigurationError, RetryLaterError, WarmupError

TABLE = "LiteLLM_SpendLogs"
PROTOCOLS = ("postgresql", "postgres")
_CONNECT_DEADLINE_S, _ROWS_DEADLINE_MS = 10, 120_000
_FETCH_ROWS = 500
_ROWS = f'select row_to_json(logs)::text from "{TABLE}" logs order by "startTime", request_id'  # noqa: S608
_SIZE = f"select pg_total_relation_size('\"{TABLE}\"')"
_PASSING = ("starting up", "shutting down", "too many", "remaining connection slots")


class SpendLogsFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """The spend logs of one database: one file, whose path has neither user nor password."""

    protocol = PROTOCOLS
    cachable = False
    is_forward_only = True

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(**options)
        self._url = url

    @classmethod
    def _get_kwargs_from_urls(cls, path: str) -> dict[str, str]:
        return {"url": path}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return f"{place(path)}.{TABLE}"

    def isfile(self, path: str) -> bool:
        """Every address is one file."""
        return True

    def size(self, path: str) -> int:
        """Return the bytes of the table; for progress."""
        with _Session(self._url) as session:
            return int(session.connection.execute(_SIZE).fetchone()[0])

    def open(self, path: str, mode: str = "rb", **_: Any) -> "SpendLogsFile":
        """Return the rows as a file of JSON lines."""
        return SpendLogsFile(self._url)


class SpendLogsFile:
    """The rows, one JSON object a line; forward only, but for going back to the start after the first read."""

    def __init__(self, url: str) -> None:
        self._lines = _lines(url)
        self._held, self._first, self._position = bytearray(), b"", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes."""
        while len(self._held) < size and (line := next(self._lines, None)) is not None:
            self._held += line
        taken = bytes(self._held[:size])
        del self._held[:size]
        self._first = taken if self._position == 0 else b""
        self._position += len(taken)
        return taken

    def seek(self, position: int) -> None:
        """Go back to the start; only possible after the first read."""
        if position != 0 or len(self._first) != self._position:
            raise OSError("the rows of a database come forward only")
        self._held[:0] = self._first
        self._position = 0

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._position


class _Session:
    """A connection, and the errors of the driver as ours."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            import psycopg
        except ImportError:
            message = "log: reading from Postgres needs its driver: pip install 'warmup-tasks[postgres]'"
            raise ConfigurationError(message) from None
        self._driver = psycopg
        self.connection: Any = None

    def __enter__(self) -> Self:
        options = f"-c statement_timeout={_ROWS_DEADLINE_MS} -c default_transaction_read_only=on"
        defaults = {"connect_timeout": _CONNECT_DEADLINE_S, "tcp_user_timeout": _ROWS_DEADLINE_MS, "options": ""}
        try:
            wanted = {**defaults, **self._driver.conninfo.conninfo_to_dict(self._url)}
            wanted["options"] = f"{options} {wanted['options']}"
            self.connection = self._driver.connect(**wanted)
        except self._driver.Error as error:
            raise self._ours(error) from None
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.connection.close()
        if isinstance(error, self._driver.Error):
            raise self._ours(error) from None

    def _ours(self, error: Exception) -> WarmupError:
        text, where, known = str(error), place(self._url), self._driver.errors
        if isinstance(error, known.UndefinedTable):
            hint = "name the proxy's database; for another schema add ?options=-csearch_path%3D<schema>"
            return ConfigurationError(f"log: {where} has no table {TABLE}: {hint}")
        if isinstance(error, known.InsufficientPrivilege):
            return ConfigurationError(f"log: the user may not read {TABLE} in {where}: grant select")
        if isinstance(error, self._driver.ProgrammingError):
            return ConfigurationError(f"log: {where} is no address of Postgres that its driver understands")
        refusal = text.rpartition("FATAL:")[2].strip() if "FATAL:" in text else ""
        if refusal and not any(passing in refusal for passing in _PASSING):
            return ConfigurationError(f"log: {where} refuses: {refusal}")
        return RetryLaterError(f"log: {where} does not answer, or not in time ({type(error).__name__})")


def register() -> None:
    """Make addresses of Postgres readable as logs."""
    for protocol in PROTOCOLS:
        fsspec.register_implementation(protocol, SpendLogsFileSystem, clobber=True)


def place(url: str) -> str:
    """Return an address without user, password and options."""
    parts = urlsplit(url)
    _, _, host = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{host}{parts.path}"


def _lines(url: str) -> Generator[bytes, None, None]:
    with _Session(url) as session, session.connection.cursor("warmup_spend_logs") as cursor:
        cursor.itersize = _FETCH_ROWS
        for (row,) in cursor.execute(_ROWS):
            yield row.encode() + b"\n"
