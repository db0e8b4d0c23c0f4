"""Records that lie nested in JSON documents: one document a file, one a line, or one after the other.

A format names the lists that hold its records (``nests.py``); here documents are opened down to them. A document that
is larger than one record may be is never held whole. No format's names.
"""

import gc
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import ijson
import orjson

from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.nests import ELEMENTS, Nest, unfold, with_context
from warmup_tasks.sources.reading import DamagedFileError, Line, Raw

_ENDS = ("end_map", "end_array")
_STARTS = ("start_map", "start_array")
_FEED_BYTES = 2**16


class Numbering:
    """Numbers the records of one file, from 1; where each line holds one record, these are the numbers of the lines."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, line_number: int = 0) -> int:
        """Return the number of the next record, which begins on the given line."""
        self._last = max(self._last + 1, line_number)
        return self._last

    def fault(self, fault: Fault, detail: str = "", line: Line | None = None) -> Raw:
        """Return a record that cannot be read; ``line`` is the line that it stands on, if any."""
        line = line or Line(0, b"", 0)
        return Raw(line._replace(number=self.next(line.number), fault=fault, detail=detail), {})

    def raw(self, value: Any, line_number: int = 0) -> Raw:
        """Return a parsed value as a record; one that is no object has that fault."""
        data = _as_json(value)
        line = Line(self.next(line_number), data, len(data))
        if isinstance(value, dict):
            return Raw(line, value)
        return Raw(line._replace(fault=Fault.NOT_AN_OBJECT, detail=type(value).__name__), {})


def unfolded(raws: Iterable[Raw], nests: Sequence[Nest]) -> Iterator[Raw]:
    """Yield the records that stand nested in the documents of a file's lines, numbered through."""
    numbers = Numbering()
    for raw in raws:
        if raw.line.fault is not None:
            yield numbers.fault(raw.line.fault, raw.line.detail, raw.line)
            continue
        for value in unfold(raw.value, nests):
            if value is raw.value:
                yield Raw(raw.line._replace(number=numbers.next(raw.line.number)), raw.value)
            else:
                yield numbers.raw(value, raw.line.number)


def records(blocks: Iterator[bytes], nests: Sequence[Nest], limit: int, whole_bytes: int = 0) -> Iterator[Raw]:
    """Yield the records of a file that is one JSON document, or several one after the other.

    Args:
        blocks: the content.
        nests: where records lie; the elements of a list at the top are records anyway.
        limit: bytes that one record may have; a larger one is a fault, the rest is read.
        whole_bytes: bytes up to which the file is held whole, which is many times as fast; at least ``limit``.
    """
    numbers, feed = Numbering(), _Feed(blocks)
    if feed.fill(max(limit, whole_bytes)):
        try:
            value = _load(feed.held)
        except orjson.JSONDecodeError:
            pass
        else:
            yield from (numbers.raw(record) for record in unfold(value, nests))
            return
    try:
        for value in _Walk(feed, nests, limit).values():
            if isinstance(value, _TooLong):
                yield numbers.fault(Fault.RECORD_TOO_LONG, f"the limit is {limit} bytes")
            else:
                yield from (numbers.raw(record) for record in unfold(value, nests))
    except DamagedFileError as error:
        yield numbers.fault(error.fault, "what follows is lost")
    except (ijson.JSONError, UnicodeDecodeError) as error:
        yield numbers.fault(_why_not_json(error), "what follows is lost")


def beginning(head: bytes) -> list[dict[str, Any]]:
    """Return the objects with which a document begins, as far as they go; for recognising a format."""
    builder = ijson.ObjectBuilder()
    try:
        for event, value in ijson.basic_parse(head):
            builder.event(event, value)
    except (ijson.JSONError, UnicodeDecodeError):
        pass
    value = getattr(builder, "value", None)
    return [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, dict)]


class _TooLong:
    """Stands for a record that is longer than the limit."""


class _Feed:
    """A file for the parser: knows how far it was read, and refuses to let one text grow without end."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.held, self.position, self.since, self.limit = b"", 0, 0, 0
        self._blocks, self._front = blocks, io.BytesIO()
        self._error: DamagedFileError | None = None

    def fill(self, limit: int) -> bool:
        """Hold the content up to ``limit`` bytes and say whether that is all of it."""
        parts, size = [], 0
        try:
            for block in self._blocks:
                parts.append(block)
                size += len(block)
                if size > limit:
                    break
        except DamagedFileError as error:
            self._error = error
        self.held = b"".join(parts).removeprefix(b"\xef\xbb\xbf")
        self._front = io.BytesIO(self.held)
        return size <= limit and self._error is None

    def read(self, size: int = _FEED_BYTES) -> bytes:
        """Return the next bytes; as the parser asks for it."""
        taken = self._front.read(size)
        if not taken and size:
            self.held = b""
            if self._error is not None:
                raise self._error
            self._front = io.BytesIO(next(self._blocks, b""))
            taken = self._front.read(size)
        self.position += len(taken)
        if self.limit and self.position - self.since > self.limit:
            raise DamagedFileError(Fault.RECORD_TOO_LONG)
        return taken


class _Building:
    """A value that is being put together from the parser's events."""

    def __init__(self, path: str, start: int, limit: int) -> None:
        self.path, self.start, self.limit = path, start, limit
        self.builder: Any = ijson.ObjectBuilder()

    def is_done(self, path: str, event: str, value: Any, position: int) -> bool:
        """Take one event; say whether it was the value's last one."""
        if self.builder is not None:
            self.builder.event(event, float(value) if isinstance(value, Decimal) else value)
            if position - self.start > self.limit:
                self.builder = None
        return path == self.path and event not in _STARTS and event != "map_key"

    def value(self) -> Any:
        """Return the whole value."""
        return self.builder.value if self.builder is not None else _TooLong()


class _Walk:
    """Goes through a large document and lets go of each record before the next."""

    def __init__(self, feed: _Feed, nests: Sequence[Nest], limit: int) -> None:
        self.feed, self.limit = feed, limit
        self.nests = {nest.records: nest for nest in (Nest(ELEMENTS), *nests)}
        self.lists = {path.rpartition(".")[0] for path in self.nests}
        self.contexts = {path: name for nest in nests for name, path in nest.context}
        self.context: dict[str, Any] = {}

    def values(self) -> Iterator[Any]:
        """Yield records, and top-level values that hold no list of records."""
        whole: _Building | None = None  # a top-level value, as long as no list of records was met in it
        record: _Building | None = None
        member: _Building | None = None
        is_inside = False
        self.feed.limit = 4 * self.limit + 2 * _FEED_BYTES
        for path, event, value in ijson.parse(self.feed, multiple_values=True, buf_size=_FEED_BYTES):
            position = self.feed.since = self.feed.position
            if not is_inside:
                is_inside, self.context = True, {}
                whole = _Building("", position, self.limit)
            if record is None and event == "start_array" and path in self.lists:
                whole = None
            if member is None and path in self.contexts and event not in (*_ENDS, "map_key"):
                member = _Building(path, position, self.limit)
            if member is not None and member.is_done(path, event, value, position):
                if not isinstance(member.value(), _TooLong):
                    self.context[path] = member.value()
                member = None
            if whole is None and record is None and path in self.nests and event not in _ENDS:
                record = _Building(path, position, self.limit)
            if record is not None and record.is_done(path, event, value, position):
                yield with_context(record.value(), self._context_of(self.nests[record.path]))
                record = None
            if whole is not None and whole.is_done(path, event, value, position):
                yield whole.value()
            if path == "" and event not in _STARTS and event != "map_key":
                is_inside, whole = False, None
            elif event == "end_map":
                self._forget_below(path)

    def _context_of(self, nest: Nest) -> dict[str, Any]:
        return {name: self.context[path] for name, path in reversed(nest.context) if path in self.context}

    def _forget_below(self, path: str) -> None:
        for known in [known for known in self.context if known.startswith(path + ".")]:
            if known.removeprefix(path + ".").count(".") == 0 and path.endswith(ELEMENTS):
                del self.context[known]


def _load(data: bytes) -> Any:
    """Parse without the garbage collector, which would look through the growing document again and again."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(data)
    finally:
        if is_enabled:
            gc.enable()


def _why_not_json(error: Exception) -> Fault:
    text = str(error)
    if isinstance(error, UnicodeDecodeError) or "UTF" in text:
        return Fault.NOT_UTF8
    return Fault.TRUNCATED_DOCUMENT if "EOF" in text or "ncomplete" in text else Fault.NOT_JSON


def _as_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=str)
    except TypeError:  # half a surrogate pair, a number beyond 64 bits, endless depth
        try:
            return json.dumps(value, default=str).encode()
        except (RecursionError, ValueError):
            return b""
