"""Where each value in a block of JSON lines stands: looked up by path, and copied out a column at a time.

The compiled loops with their buffers, behind names; which values a column takes is told in ``spans.py``. Loading this
module loads numba.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from warmup_tasks.sources.compiled import texts as texts_of
from warmup_tasks.sources.compiled import values as values_of
from warmup_tasks.sources.compiled.index import ESCAPED, INTEGER, NULL, PLAIN, TEXT, entries_at_most, index_lines
from warmup_tasks.sources.fields import Path

_LINE_ENDS = b"\n" * 16
_NO_BYTES = np.empty(0, dtype=np.uint8)
_MOST_DIGITS = 18

Entries = npt.NDArray[np.int32]
Marks = npt.NDArray[np.bool_]


class Written(NamedTuple):
    """Texts one behind the other: their bytes, where each begins and the last one ends, and which rows have one."""

    content: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int32]
    is_given: Marks

    def texts(self) -> pa.Array:
        """Return them as a column."""
        is_valid = None if self.is_given.all() else pa.py_buffer(np.packbits(self.is_given, bitorder="little"))
        buffers = [pa.py_buffer(self.offsets), pa.py_buffer(self.content), is_valid]
        return pa.StringArray.from_buffers(len(self.is_given), *buffers)


class LineIndex:
    """Where each value of a block of lines stands; the buffers serve the next block again.

    Attributes:
        data: the lines.
        roots: entry of each line, -1 where it has none.
        line_starts: where each line starts.
    """

    def __init__(self) -> None:
        self.tape: tuple[Any, ...] = ()
        self._lines = np.empty((2, 0), dtype=np.int32)
        self.content = b""
        self.data = np.empty(0, dtype=np.uint8)
        self.roots, self.line_starts = self._lines

    def read(self, lines: bytes, count: int) -> None:
        """Index lines, each with its end."""
        self.content = lines + _LINE_ENDS
        self.data = np.frombuffer(self.content, dtype=np.uint8)
        needed = entries_at_most(len(lines))
        if not self.tape or len(self.tape[0]) < needed:
            self.tape = (np.empty(needed, dtype=np.uint8), *(np.empty(needed, dtype=np.int32) for _ in range(5)))
            for column in self.tape:
                column[-1] = 0  # entry -1, which none has, is null
        if self._lines.shape[1] < count:
            self._lines = np.empty((2, count), dtype=np.int32)
        self.roots, self.line_starts = self._lines[0, :count], self._lines[1, :count]
        index_lines(self.data, PLAIN, self.tape, self.roots, self.line_starts)

    def line(self, place: int) -> bytes:
        """Return one line without its end."""
        start = int(self.line_starts[place])
        return self.content[start : self.content.index(b"\n", start)]

    def at(self, entries: Entries, path: Path) -> Entries:
        """Return the entries at a path in objects, -1 where there is none."""
        for part in (path,) if isinstance(path, str) else path:
            found = np.empty(len(entries), dtype=np.int32)
            if isinstance(part, str):
                name = np.frombuffer(part.encode(), dtype=np.uint8)
                values_of.find(self.data, self.tape, entries, name, found)
            else:
                values_of.first_item(self.tape, entries, found)
            entries = found
        return entries

    def names(self, entries: Entries) -> set[str] | None:
        """Return the names that objects have; None: too many."""
        found = np.empty(values_of.MOST_NAMES, dtype=np.int32)
        count = values_of.names(self.data, self.tape, entries, found)
        starts, ends = self.tape[4], self.tape[5]
        return None if count < 0 else {self.content[starts[one] : ends[one]].decode() for one in found[:count]}

    def are(self, entries: Entries, *kinds: int) -> Marks:
        """Say which values are of one of the kinds."""
        found = self.tape[0][entries]
        mask: Marks = np.logical_or.reduce([found == kind for kind in kinds]) & (entries >= 0)
        return mask

    def are_words(self, entries: Entries) -> Marks:
        """Say which values are texts, or whole numbers that are texts as they stand."""
        found = self.are(entries, TEXT, ESCAPED, INTEGER)
        is_number = self.are(entries, INTEGER)
        if is_number.any():
            starts, ends = self.tape[1][entries], self.tape[2][entries]
            found &= ~is_number | ((self.data[starts] != ord("-")) & (ends - starts <= _MOST_DIGITS))
        return found

    def are_empty(self, entries: Entries) -> Marks:
        """Say which values are empty texts."""
        mask: Marks = self.are(entries, TEXT) & (self.tape[1][entries] == self.tape[2][entries])
        return mask

    def are_equal(self, entries: Entries, text: str) -> Marks:
        """Say which values are that text."""
        found = np.empty(len(entries), dtype=bool)
        wanted = np.frombuffer(text.encode(), dtype=np.uint8)
        values_of.equal(self.data, self.tape, entries, wanted, found)
        return found

    def integers(self, entries: Entries) -> tuple[npt.NDArray[np.int64], Marks]:
        """Return whole numbers of few digits and no sign, and which values are such."""
        numbers, is_given = np.empty(len(entries), dtype=np.int64), np.empty(len(entries), dtype=bool)
        values_of.integers(self.data, self.tape, entries, numbers, is_given)
        return numbers, is_given

    def texts(self, entries: Entries, lowest: int, highest: int) -> pa.Array:
        """Return the values of some kinds as texts, decoded; null for any other."""
        return self._write(texts_of.write_texts, entries, lowest, highest).texts()

    def prompts(self, contents: Entries, tools: Entries, args: Entries, *, is_canonical: bool) -> Written:
        """Return prompts as they are stored, or in canonical form."""
        return self._write(texts_of.write_prompts, contents, tools, args, is_canonical)

    def value(self, entry: int) -> Any:
        """Return a value as an object."""
        kind, start, end = (int(column[entry]) for column in self.tape[:3])
        if entry < 0 or kind == NULL:
            return None
        quote = 1 if kind in (TEXT, ESCAPED) else 0
        return orjson.loads(self.content[start - quote : end + quote])

    def _write(self, kernel: Callable[..., int], entries: Entries, *arguments: Any) -> Written:
        offsets, is_given = np.empty(len(entries) + 1, dtype=np.int32), np.empty(len(entries), dtype=bool)
        size = kernel(self.data, self.tape, entries, *arguments, (_NO_BYTES, offsets, is_given))
        content = np.empty(size + 1, dtype=np.uint8)
        kernel(self.data, self.tape, entries, *arguments, (content, offsets, is_given))
        return Written(content, offsets, is_given)
