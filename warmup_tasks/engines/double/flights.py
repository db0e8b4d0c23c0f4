"""One prompt under way: its tokens, its place in the cache, what was drawn for it so far.

Here lives the record that the scheduler works on and that a response reads from. No scheduling, no wire format.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from warmup_tasks.engines.double.adapters import Adapter
from warmup_tasks.engines.double.answers import Draw, Sampling, next_key, next_state, root_key
from warmup_tasks.engines.double.blocks import Block

ROOT_STATE = b"\0" * 16


@dataclass(slots=True, eq=False)
class Flight:
    """One prompt and its answer. ``computed`` counts tokens whose KV stands in ``blocks``."""

    tokens: list[int]
    adapter: Adapter | None
    salt: str | None
    max_tokens: int
    sampling: Sampling
    priority: int = 0
    prompt_tokens: int = 0
    number: int = 0
    arrived_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    version: bytes = b""
    computed: int = 0
    cached_tokens: int | None = None
    blocks: list[Block] = field(default_factory=list)
    registered: int = 0
    keys: list[bytes] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    finish_reason: str | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    _state: bytes = ROOT_STATE
    _state_blocks: int = 0
    _root: bytes = b""

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    def __lt__(self, other: "Flight") -> bool:
        return (self.priority, self.number) < (other.priority, other.number)

    def take_keys(self, block_size: int, *, with_salt: bool) -> None:
        """Make the keys of all full blocks that have none yet."""
        if not self.keys:
            self._root = root_key(self.adapter.key if self.adapter else None, self.salt if with_salt else None)
        parent = self.keys[-1] if self.keys else self._root
        for start in range(len(self.keys) * block_size, len(self.tokens) - block_size + 1, block_size):
            parent = next_key(parent, self.tokens[start : start + block_size])
            self.keys.append(parent)

    def begin(self, hit: Sequence[Block], block_size: int) -> None:
        """Start from the blocks that were found: their states, whatever computed them, are taken as they are."""
        self.blocks = list(hit)
        self.registered = self._state_blocks = len(hit)
        self.computed = len(hit) * block_size
        self._state = hit[-1].state if hit else ROOT_STATE

    def next_block_state(self, block_size: int) -> bytes:
        """Return the state after the next full block, and move on to it."""
        start = self._state_blocks * block_size
        self._state = next_state(self._state, self.version, self.tokens[start : start + block_size])
        self._state_blocks += 1
        return self._state

    def state(self, block_size: int) -> bytes:
        """Return the state after all tokens."""
        return next_state(self._state, self.version, self.tokens[self._state_blocks * block_size :])

    def finish(self, reason: str) -> None:
        """End, waking whoever waits."""
        self.finish_reason = reason
        self.progress.set()
        self.finished.set()

    async def stream(self) -> AsyncIterator[list[Draw]]:
        """Yield draws as they come; after the last one ``finish_reason`` is set."""
        taken = 0
        while True:
            await self.progress.wait()
            self.progress.clear()
            is_over = self.finished.is_set()
            fresh = self.draws[taken:]
            taken += len(fresh)
            if fresh or is_over:
                yield fresh
            if is_over:
                return
