"""The mechanics of reading logs: which files, which compression, which lines, which JSON.

Here live files and bytes; what a record means is the business of the formats. Each line comes out either whole or with
the fault that keeps it from being read, so that nothing is lost silently.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import fsspec
import orjson
import pyarrow as pa

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.sources.faults import Fault

MAX_LINE_BYTES = 8 * 2**20
SAMPLE_LINES = 64
SAMPLE_BYTES = 2 * 2**20
_BLOCK_BYTES = 2**18
_ZSTD_BLOCK_BYTES = 2**13  # what a cut zstd file can lose besides its last line
_GZIP_MAGIC, _ZSTD_MAGIC, _BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"


class LogFile(NamedTuple):
    """One file of a log; ``name`` is relative to the log's root and stands in the lake."""

    name: str
    path: str
    size_bytes: int
    fs: Any

    @property
    def is_compressed(self) -> bool:
        """Whether the file's bytes are not its content."""
        with self.fs.open(self.path, "rb") as handle:
            magic = handle.read(len(_ZSTD_MAGIC))
        return bool(magic.startswith(_GZIP_MAGIC) or magic == _ZSTD_MAGIC)

    @property
    def can_go_on(self) -> bool:
        """Whether the file keeps its bytes, so that reading can go on where it ended; the rows of a database do not."""
        return not getattr(self.fs, "is_forward_only", False)

    def blocks(self, on_progress: Callable[[int], None] | None = None, start: int = 0) -> Iterator[bytes]:
        """Yield the decompressed content block by block; raises ``DamagedFileError`` where that ends too early.

        Args:
            on_progress: called with the bytes read so far, as they stand in the file.
            start: bytes of content to leave out.
        """
        with self.fs.open(self.path, "rb") as handle:
            for block in _decompressed(handle, start):
                if on_progress is not None:
                    on_progress(handle.tell())
                yield block


class DamagedFileError(Exception):
    """A compressed file ends too early or does not decompress; carries the fault for the quarantine."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Line(NamedTuple):
    """One line: its number from 1, its bytes, what is wrong with it, if anything, and whether its end is missing."""

    number: int
    data: bytes
    size_bytes: int
    sha256: str | None = None
    fault: Fault | None = None
    detail: str = ""
    is_open: bool = False

    def digest(self) -> str:
        """Return the SHA-256 of the whole line, the part beyond the limit included."""
        return self.sha256 or hashlib.sha256(self.data).hexdigest()


class Raw(NamedTuple):
    """One record before its meaning: the line, and its JSON object where there is no fault."""

    line: Line
    value: dict[str, Any]


def shown(log: str) -> str:
    """Return a log's address as messages and the lake may hold it: without login and password."""
    scheme, separator, rest = log.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}" if separator else log


def discover(log: str) -> list[LogFile]:
    """Return the files of a log, sorted by name.

    Args:
        log: a file, a folder (all files below it; hidden ones are left out) or a glob, local or an fsspec URI.

    Raises:
        ConfigurationError: there is nothing to read.
    """
    fs, path = fsspec.core.url_to_fs(log)
    if fs.isfile(path):
        paths, root = [path], path.rpartition("/")[0]
    elif fs.isdir(path):
        paths, root = fs.find(path), path.rstrip("/")
    else:
        paths = [found for found in fs.glob(path) if fs.isfile(found)]
        root = path.partition("*")[0].partition("?")[0].partition("[")[0].rpartition("/")[0]
    names = sorted((str(found)[len(root) :].lstrip("/"), str(found)) for found in paths)
    seen = [(name, found) for name, found in names if not any(part.startswith(".") for part in name.split("/"))]
    if not seen:
        raise ConfigurationError(f"log: {shown(log)!r} is no file, no folder with files and no glob that matches any")
    return [LogFile(name, found, int(fs.size(found) or 0), fs) for name, found in seen]


def lines(blocks: Iterator[bytes], max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Yield the lines that are not blank; a line beyond the limit is counted and hashed, but not held.

    Where the content ends too early, the last line carries that fault, even when nothing of it was left.
    """
    number, open_line, is_damaged = 0, OpenLine(max_line_bytes), False
    mark = _BOM
    try:
        for block in blocks:
            block, mark = block.removeprefix(mark), b""
            *pieces, rest = block.split(b"\n")
            for piece in pieces:
                open_line.add(piece)
                number += 1
                line = open_line.close(number)
                if line.fault or line.data.strip():
                    yield line
            open_line.add(rest)
    except DamagedFileError as error:
        is_damaged = True
        yield open_line.close(number + 1)._replace(fault=error.fault, detail="what follows is lost")
    if not is_damaged and open_line.size_bytes:
        line = open_line.close(number + 1)
        if line.fault or line.data.strip():
            yield line._replace(is_open=True)


def json_records(log_lines: Iterator[Line]) -> Iterator[Raw]:
    """Parse lines as JSON objects, one a line."""
    return map(json_record, log_lines)


def json_record(line: Line) -> Raw:
    """Parse a line as a JSON object."""
    if line.fault is not None:
        return Raw(line, {})
    try:
        value = orjson.loads(line.data)
    except orjson.JSONDecodeError:
        return Raw(line._replace(fault=_why_not_json(line)), {})
    if isinstance(value, dict):
        return Raw(line, value)
    return Raw(line._replace(fault=Fault.NOT_AN_OBJECT, detail=type(value).__name__), {})


def sample(file: LogFile) -> list[Line]:
    """Return a file's first lines, for recognising its format."""
    taken: list[Line] = []
    size = 0
    for line in islice(lines(file.blocks()), SAMPLE_LINES):
        taken.append(line)
        size += line.size_bytes
        if size > SAMPLE_BYTES:
            break
    return taken


class OpenLine:
    """The line that is being read; beyond the limit it is counted and hashed, but not held."""

    def __init__(self, limit: int) -> None:
        self.limit, self.parts, self.size_bytes, self.held, self.hash = limit, [b""], 0, 0, hashlib.sha256()

    def add(self, piece: bytes) -> None:
        """Take the next part of the line."""
        self.size_bytes += len(piece)
        if self.size_bytes <= self.limit:
            self.parts.append(piece)
            return
        for part in (*self.parts, piece):
            self.hash.update(part)
        self.parts = []

    def close(self, number: int) -> Line:
        """Return the line, with its fault if it is too long, and begin the next one."""
        if self.size_bytes <= self.limit:
            line = Line(number, b"".join(self.parts), self.size_bytes)
        else:
            detail = f"{self.size_bytes} bytes, the limit is {self.limit}"
            line = Line(number, b"", self.size_bytes, self.hash.hexdigest(), Fault.LINE_TOO_LONG, detail)
        self.parts, self.size_bytes, self.hash = [], 0, hashlib.sha256()
        return line


def _why_not_json(line: Line) -> Fault:
    if b"\0" in line.data:
        return Fault.NUL_BYTE
    try:
        line.data.decode()
    except UnicodeDecodeError:
        return Fault.NOT_UTF8
    return Fault.TRUNCATED_LINE if line.is_open else Fault.NOT_JSON


class _ZstdFile(io.RawIOBase):
    """Adapts Arrow's decompressing stream, which knows ``read`` only."""

    def __init__(self, handle: Any) -> None:
        self.stream = pa.CompressedInputStream(pa.PythonFile(handle, mode="r"), "zstd")

    def read1(self, _: int) -> bytes:
        return bytes(self.stream.read(_ZSTD_BLOCK_BYTES))


def _decompressed(handle: Any, start: int) -> Iterator[bytes]:
    magic = handle.read(4)
    is_gzip, is_zstd = magic.startswith(_GZIP_MAGIC), magic == _ZSTD_MAGIC
    handle.seek(0 if is_gzip or is_zstd else start)
    if not is_gzip and not is_zstd:
        yield from iter(lambda: handle.read(_BLOCK_BYTES), b"")
        return
    reader: Any = gzip.GzipFile(fileobj=handle) if is_gzip else _ZstdFile(handle)
    while True:
        try:
            block = reader.read1(_BLOCK_BYTES)
        except EOFError:
            raise DamagedFileError(Fault.CUT_SHORT) from None
        except (gzip.BadGzipFile, zlib.error):
            raise DamagedFileError(Fault.DAMAGED) from None
        except OSError as error:
            fault = Fault.CUT_SHORT if "runcated" in str(error) else Fault.DAMAGED
            raise DamagedFileError(fault) from None
        if not block:
            return
        if start < len(block):
            yield block[start:]
        start = max(0, start - len(block))
