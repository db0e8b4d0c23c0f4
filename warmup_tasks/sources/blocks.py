"""Whole lines in blocks, each of which can be read apart from the others, by whichever process.

A block knows the number of its first line and its place in the file, so that numbers are exact wherever it is read. It
says the same about each line as ``reading.lines`` and ``reading.json_records``.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson

from warmup_tasks.sources.reading import MAX_LINE_BYTES, DamagedFileError, Line, OpenLine, json_record

BLOCK_BYTES = 2**20
"""Records of so many bytes stay in the processor's cache while they are read; more take a third longer."""
COLUMN_BYTES = 2**22
"""Columns of so many bytes give Python little to do between the compiled loops."""
_LINE_END = 10
_BOM = b"\xef\xbb\xbf"


class LineBlock(NamedTuple):
    """Whole lines of a file, or one that cannot be had.

    Attributes:
        first_line: number of the first line.
        offset: where in the content, decompressed, they begin.
        data: the lines with their ends.
        line_ends: how many those are.
        lost: a line that is too long, or what is left where a damaged file ends; then there is no data.
        is_open: the file ends with this block, and not with a line end: the last line may be a part of one.
    """

    first_line: int
    offset: int
    data: bytes = b""
    line_ends: int = 0
    lost: Line | None = None
    is_open: bool = False

    @property
    def end(self) -> int:
        """Where in the content the lines end."""
        return self.offset + (len(self.data) if self.lost is None else self.lost.size_bytes + self.line_ends)


class Parsed(NamedTuple):
    """The lines of a block: the JSON objects with their numbers and bytes, and the lines that are none."""

    records: list[dict[str, Any]]
    numbers: list[int]
    lines: list[bytes]
    faults: list[Line]


def line_blocks(
    content: Iterator[bytes],
    max_line_bytes: int = MAX_LINE_BYTES,
    *,
    first_line: int = 1,
    offset: int = 0,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[LineBlock]:
    """Yield the content in blocks.

    Args:
        content: from ``offset`` on.
        max_line_bytes: longer lines are counted and hashed, but not held.
        first_line: number of the line that begins at ``offset``.
        offset: where ``content`` begins.
        block_bytes: about so many a block.
    """
    held, too_long = b"", OpenLine(max_line_bytes)
    mark = b"" if offset else _BOM
    try:
        for piece in _gathered(content, block_bytes):
            if mark and piece.startswith(mark):
                piece, offset = piece[len(mark) :], len(mark)
            mark = b""
            if too_long.size_bytes:
                end, line_end, piece = piece.partition(b"\n")
                too_long.add(end)
                if not line_end:
                    continue
                lost = too_long.close(first_line)
                yield LineBlock(first_line, offset, line_ends=1, lost=lost)
                first_line, offset = first_line + 1, offset + lost.size_bytes + 1
            cut = piece.rfind(b"\n") + 1
            if cut:
                data, held = held + piece[:cut], piece[cut:]
                block = LineBlock(first_line, offset, data, _line_ends(data))
                yield block
                first_line, offset = first_line + block.line_ends, offset + len(data)
            else:
                held += piece
            if len(held) > max_line_bytes:
                too_long.add(held)
                held = b""
    except DamagedFileError as error:
        too_long.add(held)
        lost = too_long.close(first_line)._replace(fault=error.fault, detail="what follows is lost")
        yield LineBlock(first_line, offset, lost=lost, is_open=True)
        return
    if too_long.size_bytes:
        yield LineBlock(first_line, offset, lost=too_long.close(first_line), is_open=True)
    elif held:
        yield LineBlock(first_line, offset, held, is_open=True)


def parse(block: LineBlock, max_line_bytes: int = MAX_LINE_BYTES) -> Parsed:
    """Parse the lines of a block as JSON objects, one a line, blank lines left out."""
    if block.lost is not None:
        return Parsed([], [], [], [block.lost])
    pieces = block.data.split(b"\n")
    if not block.is_open:
        pieces.pop()
    return parse_lines(enumerate(pieces, block.first_line), max_line_bytes, is_open=block.is_open)


def parse_lines(lines: Iterable[tuple[int, bytes]], max_line_bytes: int = MAX_LINE_BYTES, *, is_open: bool) -> Parsed:
    """Parse numbered lines as JSON objects, blank ones left out.

    Args:
        lines: number and content of each.
        max_line_bytes: longer ones are a fault.
        is_open: the last one has no end, and may be a part of a line.
    """
    records, numbers, pieces, faults = parsed = Parsed([], [], [], [])
    for number, piece in lines:
        try:
            value = orjson.loads(piece)
        except orjson.JSONDecodeError:
            value = None
        if type(value) is dict and len(piece) <= max_line_bytes:
            records.append(value)
            numbers.append(number)
            pieces.append(piece)
        elif (fault := _fault(number, piece, max_line_bytes, is_open)) is not None:
            faults.append(fault)
    return parsed


def _fault(number: int, data: bytes, max_line_bytes: int, is_open: bool) -> Line | None:
    """Return a line that is no object with the reason, or None where it is blank."""
    if len(data) > max_line_bytes:
        line = OpenLine(max_line_bytes)
        line.add(data)
        return line.close(number)
    return json_record(Line(number, data, len(data), is_open=is_open)).line if data.strip() else None


def _line_ends(data: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) == _LINE_END))


def _gathered(content: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the content in pieces of at least that size, what came before an error too."""
    held: list[bytes] = []
    held_bytes = 0
    try:
        for piece in content:
            held.append(piece)
            held_bytes += len(piece)
            if held_bytes >= size:
                yield b"".join(held)
                held, held_bytes = [], 0
    except DamagedFileError:
        yield b"".join(held)
        raise
    yield b"".join(held)
