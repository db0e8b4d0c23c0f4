"""The KV cache as blocks: who holds them, in which order they are given up, which content they still carry.

Here live the pool and its least-recently-used order. A block is found by its *key* (a chain over tokens, adapter and
salt) and carries its *state* (a chain over tokens and the weights that computed it): equal keys may hide different
states, which is how stale hits come about. Hashes are made elsewhere.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


class Block:
    """One slot of the cache. ``references`` counts the requests that hold it."""

    __slots__ = ("key", "number", "references", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.references = 0
        self.key: bytes | None = None
        self.state = b""


class BlockPool:
    """A fixed number of blocks with content-addressed reuse.

    Free blocks stand in a queue; its head is taken first. A block that carries content goes to the tail when it is
    freed, one without goes to the head. A hit takes a free block out of the queue, so being used renews it.
    """

    def __init__(
        self,
        capacity: int,
        *,
        on_evicted: Callable[[bytes], None] = lambda _: None,
        forgets_to_evict: Callable[[], bool] = lambda: False,
    ) -> None:
        self.capacity = capacity
        self._on_evicted = on_evicted
        self._forgets_to_evict = forgets_to_evict
        self._free: OrderedDict[int, Block] = OrderedDict((n, Block(n)) for n in range(capacity))
        self._by_key: dict[bytes, dict[int, Block]] = {}
        self._next_number = capacity
        self._total = capacity

    @property
    def free_count(self) -> int:
        """Blocks that no request holds; cached content may still be in them."""
        return len(self._free)

    @property
    def held_count(self) -> int:
        """Blocks that a request holds."""
        return self._total - len(self._free)

    @property
    def cached_count(self) -> int:
        """Keys that would hit."""
        return len(self._by_key)

    def keys_in_eviction_order(self) -> list[bytes]:
        """Return the keys of free blocks, the next to go first."""
        return [block.key for block in self._free.values() if block.key is not None]

    def lookup(self, keys: Sequence[bytes]) -> list[Block]:
        """Return the blocks of the longest run of leading keys that are present."""
        found: list[Block] = []
        for key in keys:
            blocks = self._by_key.get(key)
            if not blocks:
                break
            found.append(next(iter(blocks.values())))
        return found

    def touch(self, blocks: Iterable[Block]) -> None:
        """Hold these blocks: they leave the queue of free ones."""
        for block in blocks:
            if block.references == 0:
                del self._free[block.number]
            block.references += 1

    def free_among(self, blocks: Iterable[Block]) -> int:
        """Return how many of these blocks nobody holds."""
        return sum(block.references == 0 for block in blocks)

    def allocate(self, count: int) -> list[Block]:
        """Take ``count`` blocks from the head of the queue, dropping their content. Raises ``MemoryError`` if short."""
        if count > len(self._free):
            raise MemoryError(f"{count} blocks wanted, {len(self._free)} free")
        return [self._take() for _ in range(count)]

    def _take(self) -> Block:
        number, block = next(iter(self._free.items()))
        if block.key is not None and self._forgets_to_evict():
            block = Block(self._next_number)
            self._next_number += 1
            self._total += 1
        else:
            del self._free[number]
            self._drop_content(block)
        block.references = 1
        return block

    def _drop_content(self, block: Block) -> None:
        if block.key is None:
            return
        key, block.key = block.key, None
        blocks = self._by_key[key]
        del blocks[block.number]
        if not blocks:
            del self._by_key[key]
        self._on_evicted(key)

    def register(self, block: Block, key: bytes, state: bytes) -> None:
        """Make a full block findable under its key. The same key may be carried by several blocks."""
        block.key, block.state = key, state
        self._by_key.setdefault(key, {})[block.number] = block

    def free(self, blocks: Iterable[Block]) -> None:
        """Let go of blocks, given in the order in which they should be given up (leaves before parents)."""
        without_content: list[Block] = []
        for block in blocks:
            block.references -= 1
            if block.references:
                continue
            if block.key is None:
                without_content.append(block)
            else:
                self._free[block.number] = block
        for block in reversed(without_content):
            self._free[block.number] = block
            self._free.move_to_end(block.number, last=False)

    def reset(self) -> bool:
        """Forget all content, or return False and change nothing while a request holds a block."""
        if self.held_count:
            return False
        for block in self._free.values():
            block.key = None
        self._by_key.clear()
        return True
