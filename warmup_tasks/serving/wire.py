"""Redis' protocol as this package speaks it in bulk: commands packed from Arrow columns, answers counted, not parsed.

redis-py packs and parses command by command in Python, at a fraction of the server's pace. It still makes the
connection (TLS, user, database, sentinel) and gets it back. Nothing here knows what is stored.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import redis

_READ_BYTES = 1 << 16
_END = b"\r\n"
_ERRORS: dict[str, type[redis.RedisError]] = {
    "OOM": redis.exceptions.OutOfMemoryError,
    "READONLY": redis.ReadOnlyError,
    "LOADING": redis.BusyLoadingError,
    "MASTERDOWN": redis.ConnectionError,
    "CLUSTERDOWN": redis.exceptions.ClusterDownError,
    "MOVED": redis.exceptions.TryAgainError,  # the slot went to another node: ask again where it is
    "ASK": redis.exceptions.TryAgainError,
    "TRYAGAIN": redis.exceptions.TryAgainError,
    "NOAUTH": redis.AuthenticationError,
    "WRONGPASS": redis.AuthenticationError,
    "NOPERM": redis.exceptions.NoPermissionError,
}


def scalar(text: bytes) -> pa.Scalar:
    """Return bytes that all rows share."""
    return pa.scalar(text, pa.binary())


def total_length(pieces: Sequence[pa.Array | pa.Scalar]) -> pa.Array | pa.Scalar:
    """Return the length of pieces side by side, in bytes: a column where one of them is a column."""
    return reduce(pc.add, map(pc.binary_length, pieces))


def command(*parts: bytes) -> bytes:
    """Return one command as it goes over the wire."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def set_commands(
    prefix: str, suffixes: pa.Array, values: Sequence[pa.Array | pa.Scalar], ttl_s: int | None
) -> memoryview:
    """Return ``SET prefix+suffix value [EX ttl_s]`` for each row, packed without a loop.

    Args:
        prefix: what every key begins with.
        suffixes: what follows it, a binary column.
        values: the pieces of each value, side by side: binary columns, or scalars that all rows share; together below
            2 GB.
        ttl_s: None sets no TTL.
    """
    begin = prefix.encode()
    life = b"" if ttl_s is None else b"$2\r\nEX\r\n$%d\r\n%d\r\n" % (len(str(ttl_s)), ttl_s)
    packed = pc.binary_join_element_wise(
        scalar(b"*%d\r\n$3\r\nSET\r\n$" % (3 if ttl_s is None else 5)),
        _digits(total_length([suffixes, scalar(begin)])),
        scalar(_END + begin),
        suffixes,
        scalar(b"\r\n$"),
        _digits(total_length(values)),
        scalar(_END),
        *values,
        scalar(_END + life),
        scalar(b""),
    )
    _, offsets, data = packed.buffers()
    ends = np.frombuffer(offsets, np.int32, len(packed) + 1, packed.offset * 4)
    return memoryview(data)[ends[0] : ends[-1]]


class Pipe:
    """One connection on which commands go out while earlier answers come in.

    Only commands that answer with one line (``+OK``, a number) may be sent. Use :func:`piped` to get one. ``sent`` and
    ``answered`` count commands and answers that have come.

    Args:
        connection: of redis-py, connected.
        window: how many answers may be due before sending waits for the oldest.
    """

    def __init__(self, connection: redis.Connection, window: int) -> None:
        self.sent = self.answered = 0
        self._connection = connection
        self._window = window
        self._rest = b""

    @property
    def due(self) -> int:
        """How many answers have not come yet."""
        return self.sent - self.answered

    def send(self, *packed: bytes | memoryview, answers: int) -> None:
        """Send packed commands that give so many answers; waits while more than the window is due.

        Raises:
            RedisError: the connection is lost, or an earlier command was refused.
        """
        self._connection.send_packed_command(packed, check_health=False)
        self.sent += answers
        while self.due > self._window:
            self._read()

    def settle(self) -> None:
        """Wait for every answer that is due; raises as :meth:`send`."""
        while self.due > 0:
            self._read()

    def _read(self) -> None:
        # redis-py has no call that gives unparsed bytes; 6.4 to 8 keep the socket under this name.
        socket = getattr(self._connection, "_sock", None)
        if socket is None:
            raise redis.ConnectionError("the connection is closed")
        try:
            data = socket.recv(_READ_BYTES)
        except TimeoutError as error:
            raise redis.TimeoutError("no answer in time") from error
        except OSError as error:
            raise redis.ConnectionError(f"while reading answers: {type(error).__name__}") from error
        if not data:
            raise redis.ConnectionError("the server closed the connection")
        answers = self._rest + data
        whole, end, self._rest = answers.rpartition(_END)
        if b"-" in answers:
            self._raise_refusal(whole + end)
        self.answered += whole.count(_END) + bool(end)

    def _raise_refusal(self, lines: bytes) -> None:
        for line in lines.split(_END):
            if line.startswith(b"-"):
                code = line[1:].split(b" ", 1)[0].decode("ascii", "replace")
                # What follows the code may quote arguments, which may hold prompts.
                raise _ERRORS.get(code, redis.ResponseError)(f"{code}: the server refused a command")


@contextlib.contextmanager
def piped(client: redis.Redis, window: int) -> Iterator[Pipe]:
    """Lend a connection of the client's pool; it is closed unless every answer has come.

    Raises:
        RedisError: no connection can be made.
    """
    pool = client.connection_pool
    connection = pool.get_connection()
    pipe = Pipe(connection, window)
    try:
        yield pipe
    finally:
        if pipe.due:
            connection.disconnect()
        pool.release(connection)


def _digits(numbers: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    return numbers.cast(pa.string()).cast(pa.binary())
