"""KV events as a witness: what they show to be resident need not be asked for (spec 6.4).

A look writes; events do not. They are believed only while they are heard: before and after the looks a block that
nobody else can have asked for is sent, and has to show. What they do not show is asked for as everywhere else.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Self

from warmup_tasks.engines.base import Engine, GenerationRequest, KvEvent
from warmup_tasks.engines.cache_picture import CachePicture
from warmup_tasks.errors import RejectItemError, RetryLaterError
from warmup_tasks.items import PlanRow, PromptBody
from warmup_tasks.validation.meter import Meter

_HEARD_WITHIN_S = 3.0


class Witness:
    """Listens to one replica while it is looked at. Without events it shows nothing."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._picture = CachePicture()
        self._news = asyncio.Event()
        self._is_heard = False

    @classmethod
    @asynccontextmanager
    async def beside(cls, engine: Engine, block_size: int) -> AsyncIterator[Self]:
        """Listen for the length of a block."""
        witness = cls(block_size)
        events = engine.kv_contents()
        listening = asyncio.create_task(witness._listen(events)) if events is not None else None
        witness._is_heard = listening is not None
        try:
            yield witness
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)

    async def hear(self, meter: Meter, row: PlanRow, token_ids: list[int], unused_salt: str) -> None:
        """Send a prompt's first block behind a salt of its own, and see that it shows; else nothing does any more.

        Raises:
            RetryLaterError: the engine does not answer.
        """
        if not self._is_heard:
            return
        self._is_heard = False
        head = token_ids[: self._block_size + 1]
        request = GenerationRequest(PromptBody(token_ids=head), row.adapter or row.model, cache_salt=unused_salt)
        try:
            await meter.look(request)
            async with asyncio.timeout(_HEARD_WITHIN_S):
                while not self._blocks(row, head, unused_salt):
                    self._news.clear()
                    await self._news.wait()
        except (RejectItemError, TimeoutError):
            return
        self._is_heard = True

    def shows(self, row: PlanRow, token_ids: list[int], expected_tokens: int) -> bool:
        """Whether all blocks of an item are there for certain."""
        wanted = expected_tokens // self._block_size
        return self._is_heard and 0 < wanted <= self._blocks(row, token_ids[:expected_tokens], row.cache_salt)

    def doubt(self) -> None:
        """Believe it no more: a look has found something missing that it had shown."""
        self._is_heard = False

    def _blocks(self, row: PlanRow, token_ids: list[int], cache_salt: str | None) -> int:
        return self._picture.resident_blocks(token_ids, self._block_size, adapter=row.adapter, cache_salt=cache_salt)

    async def _listen(self, events: AsyncGenerator[KvEvent, None]) -> None:
        async with aclosing(events):
            try:
                async for event in events:
                    self._picture.take(event)
                    self._news.set()
            except RetryLaterError:
                self._picture.take(KvEvent("lost"))
