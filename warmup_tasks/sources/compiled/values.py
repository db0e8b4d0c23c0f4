"""Values of indexed lines: looked up by name or position, and read where they are plain numbers.

A result that is missing is -1 (an entry) or marked; nothing is refused here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from warmup_tasks.compiling import compiled_in_place
from warmup_tasks.sources.compiled.index import INTEGER, LIST, OBJECT, TEXT

_MOST_DIGITS = 18
NAME_SLOTS = 1_024
MOST_NAMES = 256

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int32]
Marks = npt.NDArray[np.bool_]


@compiled_in_place
def first_item(tape: Any, entries: Numbers, found: Numbers) -> None:
    """Write of each list the entry of its first item, -1 where it has none or is no list."""
    kinds, _, _, nexts, _, _ = tape
    for row in range(len(entries)):
        entry = entries[row]
        has_item = entry >= 0 and kinds[entry] == LIST and nexts[entry] > entry + 1
        found[row] = entry + 1 if has_item else -1


@compiled_in_place
def _is_name(data: Bytes, tape: Any, one: int, other: int) -> bool:
    """Say whether two members have the same name."""
    start, known, size = tape[4][one], tape[4][other], tape[5][one] - tape[4][one]
    if tape[5][other] - known != size:
        return False
    place = 0
    while place < size and data[np.uintp(start + place)] == data[np.uintp(known + place)]:
        place += 1
    return bool(place == size)


@compiled_in_place
def _name_slot(data: Bytes, tape: Any, child: int, slots: Numbers, firsts: Numbers) -> int:
    """Return where in ``slots`` the number of a member's name stands, or is to stand."""
    start, size = tape[4][child], tape[5][child] - tape[4][child]
    slot = size * 31
    if size:
        slot += data[start] * 7 + data[start + size - 1] * 131 + data[start + size // 2] * 17
    slot %= NAME_SLOTS
    while slots[slot] >= 0 and not _is_name(data, tape, child, firsts[slots[slot]]):
        slot = (slot + 1) % NAME_SLOTS
    return int(slot)


@compiled_in_place
def members(data: Bytes, tape: Any, entries: Numbers, room: Any, found: Any) -> int:
    """Look up every member of every object at once; return how many different names they have, -1: too many.

    Args:
        data: the lines.
        tape: their entries.
        entries: the objects; what is none has no members.
        room: for the first member of each name, for ``NAME_SLOTS`` numbers of names, and for as many again.
        found: gets, names × objects, the member of that name, of several the last; -1 where there is none.
    """
    kinds, nexts = tape[0], tape[3]
    firsts, slots, expected = room
    slots[:] = -1
    expected[:] = -1
    count = 0
    for row in range(len(entries)):
        entry = entries[row]
        if entry < 0 or kinds[entry] != OBJECT:
            continue
        child, end, position = entry + 1, nexts[entry], 0
        while child < end:
            name = expected[position]
            if name < 0 or not _is_name(data, tape, child, firsts[name]):
                slot = _name_slot(data, tape, child, slots, firsts)
                if slots[slot] < 0:
                    if count == len(found):
                        return -1
                    firsts[count], slots[slot] = child, count
                    found[count, :] = -1
                    count += 1
                name = expected[position] = slots[slot]
            found[name, row] = child
            child = nexts[child]
            position = (position + 1) % NAME_SLOTS
    return count


@compiled_in_place
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


@compiled_in_place
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
