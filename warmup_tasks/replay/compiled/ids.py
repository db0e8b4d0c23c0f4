"""Dense numbers for 64-bit block names, in the order of their first appearance.

A chained block is nearly always followed by the block that followed it before, and that one has the next number: the
hash table is asked only where this guess fails. Slots hold 32 bits of the hash beside the number, so that most
collisions are settled without looking at the name; slots of the next few names are fetched together, because waiting
for one after the other is what a large table costs.
"""

import numpy as np
import numpy.typing as npt

from warmup_tasks.replay.compiled import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads consecutive names over the table
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Ids = npt.NDArray[np.int32]
Names = npt.NDArray[np.uint64]


@compiled
def number(
    names: Names, start: int, ids: Ids, known: Names, count: int, table: Names, shift: int, fetched: Names
) -> tuple[int, int]:
    """Number ``names[start:]`` until all are done or the table is half full.

    Args:
        names: block names, shape (accesses,).
        start: first one to number.
        ids: receives the numbers.
        known: number → name; receives new ones.
        count: how many are known.
        table: slots, a power of two of them; 0 is free.
        shift: 64 - log2 of the slots.
        fetched: where slots fetched together go; its length says how many.

    Returns:
        The first position that is not numbered, and how many names are known.
    """
    mask, limit, by = table.size - 1, table.size // 2, np.uint64(shift)
    fetched_until = start
    block = np.int64(ids[start - 1]) if start > 0 else np.int64(-1)
    for position in range(start, names.size):
        name = names[position]
        block += 1
        if block < count and known[block] == name:
            ids[position] = block
            continue
        if position >= fetched_until:
            if count + fetched.size > limit:
                return position, count
            fetched_until = min(names.size, position + fetched.size)
            for near in range(position, fetched_until):
                fetched[near - position] = table[np.int64((names[near] * _GOLDEN) >> by)]
        hashed = name * _GOLDEN
        tag = hashed & _LOW
        slot = np.int64(hashed >> by)
        while True:
            entry = table[slot]
            if entry == 0:
                known[count] = name
                block = np.int64(count)
                count += 1
                table[slot] = (tag << _HALF) | np.uint64(count)
                break
            if entry >> _HALF == tag:
                block = np.int64(entry & _LOW) - 1
                if known[block] == name:
                    break
            slot = (slot + 1) & mask
        ids[position] = block
    return names.size, count


@compiled
def refill(known: Names, count: int, table: Names, shift: int) -> None:
    """Enter the first ``count`` known names into an empty table."""
    mask, by = table.size - 1, np.uint64(shift)
    for block in range(count):
        hashed = known[block] * _GOLDEN
        slot = np.int64(hashed >> by)
        while table[slot] != 0:
            slot = (slot + 1) & mask
        table[slot] = ((hashed & _LOW) << _HALF) | np.uint64(block + 1)
