"""Values of indexed lines: looked up by name or position, and read where they are plain numbers.

A result that is missing is -1 (an entry) or marked; nothing is refused here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from warmup_tasks.compiling import compiled
from warmup_tasks.sources.compiled.index import INTEGER, LIST, OBJECT, TEXT

_MOST_DIGITS = 18
_TABLE = 1_024
MOST_NAMES = 256

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int32]
Marks = npt.NDArray[np.bool_]


@compiled
def find(data: Bytes, tape: Any, entries: Numbers, name: Bytes, found: Numbers) -> None:
    """Write of each object the entry of that name, -1 where it has none or is no object; of several the last counts."""
    kinds, _, _, nexts, name_starts, name_ends = tape
    size = len(name)
    for row in range(len(entries)):
        found[row] = -1
        entry = entries[row]
        if entry < 0 or kinds[entry] != OBJECT:
            continue
        child, end = entry + 1, nexts[entry]
        while child < end:
            start = name_starts[child]
            if name_ends[child] - start == size:
                place = 0
                while place < size and data[np.uintp(start + place)] == name[np.uintp(place)]:
                    place += 1
                if place == size:
                    found[row] = child
            child = nexts[child]


@compiled
def first_item(tape: Any, entries: Numbers, found: Numbers) -> None:
    """Write of each list the entry of its first item, -1 where it has none or is no list."""
    kinds, _, _, nexts, _, _ = tape
    for row in range(len(entries)):
        entry = entries[row]
        has_item = entry >= 0 and kinds[entry] == LIST and nexts[entry] > entry + 1
        found[row] = entry + 1 if has_item else -1


@compiled
def names(data: Bytes, tape: Any, entries: Numbers, found: Numbers) -> int:
    """Write one entry for each different name in the objects; return how many, -1 where they are too many."""
    kinds, _, _, nexts, name_starts, name_ends = tape
    table = np.full(_TABLE, -1, dtype=np.int32)
    count = 0
    for row in range(len(entries)):
        entry = entries[row]
        if entry < 0 or kinds[entry] != OBJECT:
            continue
        child, end = entry + 1, nexts[entry]
        while child < end:
            start, size = name_starts[child], name_ends[child] - name_starts[child]
            slot = size * 31
            if size:
                slot += data[start] * 7 + data[start + size - 1] * 131 + data[start + size // 2] * 17
            slot %= _TABLE
            while table[slot] >= 0:
                known = name_starts[table[slot]]
                place = 0 if name_ends[table[slot]] - known == size else size + 1
                while place < size and data[start + place] == data[known + place]:
                    place += 1
                if place == size:
                    break
                slot = (slot + 1) % _TABLE
            if table[slot] < 0:
                if count == len(found):
                    return -1
                table[slot] = child
                found[count] = child
                count += 1
            child = nexts[child]
    return count


@compiled
def integers(data: Bytes, tape: Any, entries: Numbers, found: npt.NDArray[np.int64], is_given: Marks) -> None:
    """Write whole numbers of at most 18 digits and no sign; ``is_given`` says which rows have one."""
    kinds, starts, ends, _, _, _ = tape
    for row in range(len(entries)):
        found[row], is_given[row] = 0, False
        entry = entries[row]
        if entry < 0 or kinds[entry] != INTEGER:
            continue
        start, end = starts[entry], ends[entry]
        if end - start > _MOST_DIGITS or data[start] == 45:
            continue
        value = 0
        for at in range(start, end):
            value = value * 10 + (data[at] - 48)
        found[row], is_given[row] = value, True


@compiled
def equal(data: Bytes, tape: Any, entries: Numbers, text: Bytes, found: Marks) -> None:
    """Write whether each value is exactly that text."""
    kinds, starts, ends, _, _, _ = tape
    for row in range(len(entries)):
        entry = entries[row]
        found[row] = entry >= 0 and kinds[entry] == TEXT and ends[entry] - starts[entry] == len(text)
        if found[row]:
            for place in range(len(text)):
                if data[starts[entry] + place] != text[place]:
                    found[row] = False
                    break
