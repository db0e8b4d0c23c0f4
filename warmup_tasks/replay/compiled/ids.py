"""Dense numbers for 64-bit block names, in the order of their first appearance.

A chained block is nearly always followed by the block that followed it last time: the hash table is asked only where
this guess fails. Slots hold 32 bits of the hash beside the number, so that most collisions are settled without looking
at the name; slots of the next few names are fetched together, because waiting for one after the other is what a large
table costs. What is left at tens of millions of names is the memory itself: each page of it is touched once at least.
"""

import numpy as np
import numpy.typing as npt

from warmup_tasks.replay.compiled import compiled

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads consecutive names over the table
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)

Ids = npt.NDArray[np.int32]
Names = npt.NDArray[np.uint64]
Followers = npt.NDArray[np.uint32]


@compiled
def number(
    names: Names,
    start: int,
    ids: Ids,
    known: Names,
    follower: Followers,
    count: int,
    table: Names,
    shift: int,
    fetched: Names,
) -> tuple[int, int]:
    """Number ``names[start:]`` until all are done or the table is three quarters full.

    Inside, numbers begin at 1, so that 0 can mean "none"; ``ids`` receives them from 0 on.

    Args:
        names: block names, shape (accesses,).
        start: first one to number.
        ids: receives the numbers.
        known: number → name, entry 0 unused; receives new ones.
        follower: number → the number that followed it last (0: none); entry 0 is for the first access of all.
        count: how many are known.
        table: slots, a power of two of them; 0 is free.
        shift: 64 - log2 of the slots.
        fetched: where slots fetched together go; its length says how many.

    Returns:
        The first position that is not numbered, and how many names are known.
    """
    mask, limit, by = np.uint64(table.size - 1), table.size - table.size // 4, np.uint64(shift)
    fetched_until = start
    block = np.uint64(ids[start - 1] + 1) if start > 0 else np.uint64(0)
    for position in range(start, names.size):
        name = names[position]
        guess = np.uint64(follower[block])
        if guess != 0 and known[guess] == name:
            block = guess
            ids[position] = np.int32(block - _ONE)
            continue
        if position >= fetched_until:
            if count + fetched.size > limit:
                return position, count
            fetched_until = min(names.size, position + fetched.size)
            for near in range(position, fetched_until):
                fetched[near - position] = table[(names[near] * _GOLDEN) >> by]
        before = block
        hashed = name * _GOLDEN
        tag = (hashed & _LOW) << _HALF
        slot = hashed >> by
        while True:
            entry = table[slot]
            if entry == 0:
                count += 1
                block = np.uint64(count)
                known[block] = name
                table[slot] = tag | block
                break
            if entry ^ tag <= _LOW:
                block = entry & _LOW
                if known[block] == name:
                    break
            slot = (slot + _ONE) & mask
        follower[before] = np.uint32(block)
        ids[position] = np.int32(block - _ONE)
    return names.size, count


@compiled
def refill(known: Names, count: int, table: Names, shift: int, fetched: Names) -> None:
    """Enter the first ``count`` known names into an empty table, slots fetched together as above."""
    mask, by = np.uint64(table.size - 1), np.uint64(shift)
    for first in range(1, count + 1, fetched.size):
        stop = min(count + 1, first + fetched.size)
        for near in range(first, stop):
            fetched[near - first] = table[(known[near] * _GOLDEN) >> by]
        for block in range(first, stop):
            hashed = known[block] * _GOLDEN
            slot = hashed >> by
            while table[slot] != 0:
                slot = (slot + _ONE) & mask
            table[slot] = ((hashed & _LOW) << _HALF) | np.uint64(block)
