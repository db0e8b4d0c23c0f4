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
from warmup_tasks.sources.compiled.index import (
    ESCAPED,
    INTEGER,
    MAX_DEPTH,
    NULL,
    PLAIN,
    TEXT,
    entries_at_most,
    index_lines,
)

_LINE_ENDS = b"\n" * 16
_NO_BYTES = np.empty(0, dtype=np.uint8)
_MOST_DIGITS = 18
_FEW_NAMES = 32

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


class Members(NamedTuple):
    """The members of objects.

    Attributes:
        by_name: name → entry of each object's member of that name, of several the last, -1 where it has none.
        rows: how many objects.
        is_complete: false where they have too many different names; then there are none.
    """

    by_name: dict[str, Entries]
    rows: int
    is_complete: bool = True

    def named(self, name: str) -> Entries:
        """Return each object's member of that name, -1 where it has none."""
        found = self.by_name.get(name)
        return np.full(self.rows, -1, dtype=np.int32) if found is None else found


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
        self._open_entries = np.empty(MAX_DEPTH, dtype=np.int32)
        sizes = (values_of.MOST_NAMES, values_of.NAME_SLOTS, values_of.NAME_SLOTS)
        self._name_room = tuple(np.empty(size, dtype=np.int32) for size in sizes)
        self._room = texts_of.room()
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
        words = np.frombuffer(self.content, dtype=np.uint64, count=len(self.content) // 8)
        index_lines(self.data, words, PLAIN, self.tape, self.roots, self.line_starts, self._open_entries)

    def line(self, place: int) -> bytes:
        """Return one line without its end."""
        start = int(self.line_starts[place])
        return self.content[start : self.content.index(b"\n", start)]

    def members(self, entries: Entries) -> "Members":
        """Return all members of objects."""
        for most in (_FEW_NAMES, values_of.MOST_NAMES):
            found = np.empty((most, len(entries)), dtype=np.int32)
            count = values_of.members(self.data, self.tape, entries, self._name_room, found)
            if count >= 0:
                starts, ends = (column[self._name_room[0][:count]].tolist() for column in self.tape[4:])
                names = (self.content[start:end].decode() for start, end in zip(starts, ends, strict=True))
                return Members({name: found[number] for number, name in enumerate(names)}, len(entries))
        return Members({}, len(entries), is_complete=False)

    def first_items(self, entries: Entries) -> Entries:
        """Return the first item of lists, -1 where there is none."""
        found = np.empty(len(entries), dtype=np.int32)
        values_of.first_item(self.tape, entries, found)
        return found

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
        return self._write(texts_of.write_prompts, contents, tools, args, is_canonical, self._room)

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
