"""What lies in a replica's cache, by its own KV events: blocks by place, so that a prompt's head can be looked up.

A picture errs on one side only: what it shows is there, what it does not show may be there. Blocks that were stored
before the first event it saw are unknown to it; one of two equal blocks that is removed takes the other one with it.
Pure.
"""

from collections.abc import Sequence

from warmup_tasks.engines.base import KvEvent

Hash = int | bytes
_Place = tuple[Hash | None, tuple[object, ...], tuple[int, ...]]


class CachePicture:
    """Built from events in their order.

    Attributes:
        is_current: everything that had happened when the listening began is in it.
        is_void: events are missing, or do not tell blocks apart that have the same tokens: it shows nothing.
    """

    def __init__(self) -> None:
        self.is_current = self.is_void = False
        self._at: dict[_Place, Hash] = {}
        self._place_of: dict[Hash, _Place] = {}

    def take(self, event: KvEvent) -> None:
        """Add one event."""
        if event.kind == "stored":
            self._store(event)
        elif event.kind == "removed":
            for name in event.block_hashes:
                self._at.pop(self._place_of.pop(name, (None, (), ())), None)
        elif event.kind == "current":
            self.is_current = True
        else:
            self.is_void = self.is_void or event.kind == "lost"
            self._at.clear()
            self._place_of.clear()

    def resident_blocks(
        self, token_ids: Sequence[int], block_size: int, *, adapter: str | None, cache_salt: str | None
    ) -> int:
        """Return how many leading blocks of a prompt are there for certain."""
        if self.is_void or not self.is_current:
            return 0
        common = () if adapter is None else (adapter,)
        extra = common if cache_salt is None else (*common, cache_salt)
        parent: Hash | None = None
        blocks = 0
        for start in range(0, len(token_ids) - block_size + 1, block_size):
            parent = self._at.get((parent, extra, tuple(token_ids[start : start + block_size])))
            if parent is None:
                break
            extra = common
            blocks += 1
        return blocks

    def _store(self, event: KvEvent) -> None:
        count = len(event.block_hashes)
        if event.group or len(event.extra_keys) != count:
            self.is_void = True
            return
        parent, size = event.parent, len(event.token_ids) // max(1, count)
        for number, name in enumerate(event.block_hashes):
            tokens = event.token_ids[number * size : (number + 1) * size]
            place = (parent, event.extra_keys[number], tokens)
            self._at[place] = name
            self._place_of[name] = place
            parent = name
