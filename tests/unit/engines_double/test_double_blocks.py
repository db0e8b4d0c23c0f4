"""The block pool against a naive model: same hits, same evictions, same order, whatever happens."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmup_tasks.engines.double.blocks import Block, BlockPool

CAPACITY = 7
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(tuple)


def chain(path: tuple[int, ...]) -> list[bytes]:
    """Return the keys of a path in a binary tree: each names all that comes before it."""
    return [bytes(path[: length + 1]) for length in range(len(path))]


class NaiveCache:
    """The same rules with plain lists: a queue of block numbers, a number → key table, reference counts."""

    def __init__(self) -> None:
        self.queue = list(range(CAPACITY))
        self.keys: dict[int, bytes] = {}
        self.references = dict.fromkeys(range(CAPACITY), 0)
        self.registered: list[int] = []

    def hits(self, keys: list[bytes]) -> list[int]:
        found = []
        for key in keys:
            numbers = [number for number in self.registered if self.keys.get(number) == key]
            if not numbers:
                break
            found.append(numbers[0])
        return found

    def hold(self, numbers: list[int]) -> None:
        for number in numbers:
            self.references[number] += 1
            if number in self.queue:
                self.queue.remove(number)

    def take(self) -> int:
        number = self.queue.pop(0)
        self.keys.pop(number, None)
        self.registered = [n for n in self.registered if n != number]
        self.references[number] = 1
        return number

    def register(self, number: int, key: bytes) -> None:
        self.keys[number] = key
        self.registered.append(number)

    def let_go(self, numbers: list[int]) -> None:
        for number in reversed(numbers):
            self.references[number] -= 1
            if self.references[number] == 0:
                self.queue.append(number)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[bytes] = []
        self.pool = BlockPool(CAPACITY, on_evicted=self.evicted.append)
        self.naive = NaiveCache()
        self.running: list[tuple[list[Block], list[int]]] = []

    @rule(path=PATHS)
    def begin(self, path: tuple[int, ...]) -> None:
        keys = chain(path)
        hit, naive_hit = self.pool.lookup(keys[:-1]), self.naive.hits(keys[:-1])
        assert [block.number for block in hit] == naive_hit
        missing = len(keys) - len(hit)
        if missing > self.pool.free_count - self.pool.free_among(hit):
            return
        self.pool.touch(hit)
        self.naive.hold(naive_hit)
        fresh = self.pool.allocate(missing)
        naive_fresh = [self.naive.take() for _ in range(missing)]
        assert [block.number for block in fresh] == naive_fresh
        for block, key in zip(fresh, keys[len(hit) :], strict=True):
            self.pool.register(block, key, key)
            self.naive.register(block.number, key)
        self.running.append((hit + fresh, naive_hit + naive_fresh))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        blocks, numbers = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.pool.free(reversed(blocks))
        self.naive.let_go(numbers)

    @rule()
    def reset(self) -> None:
        assert self.pool.reset() == (not self.running)
        if not self.running:
            self.naive.keys, self.naive.registered = {}, []

    @invariant()
    def blocks_are_conserved(self) -> None:
        assert self.pool.free_count + self.pool.held_count == CAPACITY

    @invariant()
    def eviction_order_is_the_naive_one(self) -> None:
        expected = [self.naive.keys[number] for number in self.naive.queue if number in self.naive.keys]
        assert self.pool.keys_in_eviction_order() == expected

    @invariant()
    def parents_outlive_their_leaves(self) -> None:
        present = set(self.naive.keys.values())
        assert all(key[:-1] in present for key in present if len(key) > 1)

    @invariant()
    def what_was_evicted_and_not_stored_again_misses(self) -> None:
        present = set(self.naive.keys.values())
        assert all(bool(self.pool.lookup([key])) == (key in present) for key in set(self.evicted))


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_pool_refuses_more_blocks_than_are_free() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(MemoryError):
        pool.allocate(2)


def test_block_without_content_is_reused_before_cached_content_is_dropped() -> None:
    evicted: list[bytes] = []
    pool = BlockPool(2, on_evicted=evicted.append)
    full, partial = pool.allocate(2)
    pool.register(full, b"full", b"")
    pool.free([partial, full])
    pool.allocate(1)
    assert evicted == []
    assert pool.lookup([b"full"])


def test_pool_that_forgets_to_evict_grows_instead() -> None:
    pool = BlockPool(1, forgets_to_evict=lambda: True)
    for key in (b"a", b"b", b"c"):
        (block,) = pool.allocate(1)
        pool.register(block, key, b"")
        pool.free([block])
    assert all(pool.lookup([key]) for key in (b"a", b"b", b"c"))
