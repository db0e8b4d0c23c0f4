"""What can still be there after all looks: the books of the cache against a cache that forgets the least recent."""

import random
from collections import OrderedDict

import pytest

from warmup_tasks.validation.evictions import Displacement

BLOCK = 16


def chain(item: int, blocks: int) -> list[bytes]:
    return [b"%d:%d" % (item, block) for block in range(blocks)]


def test_what_fits_together_stays() -> None:
    books = Displacement(capacity_blocks=22, block_size=BLOCK)
    for item in range(2):
        books.used((str(item), "a"), chain(item, 10), 10 * BLOCK + 1)
    assert books.doubtful(0.0) == set()
    assert books.room() == 0


def test_what_was_looked_at_first_goes_first() -> None:
    books = Displacement(capacity_blocks=22, block_size=BLOCK)
    for item in range(3):
        books.used((str(item), "a"), chain(item, 10), 10 * BLOCK + 1)
    assert books.doubtful(0.0) == {("0", "a")}


def test_shared_blocks_count_once_and_others_twice() -> None:
    books = Displacement(capacity_blocks=22, block_size=BLOCK)
    for item in range(3):
        books.used((str(item), "a"), [*chain(9, 8), *chain(item, 2)], 10 * BLOCK + 1)
    assert books.room() == 20 - 14
    assert books.doubtful(3 * BLOCK) == set()
    assert books.doubtful(3 * BLOCK + 1) == {("0", "a")}


def test_controls_and_answers_take_room_too() -> None:
    books = Displacement(capacity_blocks=22, block_size=BLOCK)
    books.used(("0", "a"), chain(0, 10), 10 * BLOCK + 1)
    books.used(None, (), 11 * BLOCK)
    assert books.doubtful(0.0) == {("0", "a")}


@pytest.mark.parametrize("seed", range(50))
def test_nothing_that_is_not_doubtful_has_left_a_real_least_recently_used_cache(seed: int) -> None:
    draw, capacity = random.Random(seed), 40
    books, cache = Displacement(capacity + 1, BLOCK), OrderedDict[bytes, None]()
    chains = {(str(item), "a"): chain(draw.randrange(12), draw.randint(1, 14)) for item in range(draw.randint(1, 12))}

    def use(names: list[bytes]) -> None:
        for name in reversed(names):
            cache[name] = None
            cache.move_to_end(name)
        while len(cache) > capacity - 1:
            cache.popitem(last=False)

    for key, names in chains.items():
        books.used(key, names, len(names) * BLOCK + 1)
        use(names)
    for number in range(draw.randint(0, 6)):
        books.used(None, (), 2 * BLOCK)
        use([b"control %d %d" % (number, block) for block in range(2)])
    for key in chains.keys() - books.doubtful(0.0):
        assert all(name in cache for name in chains[key])
