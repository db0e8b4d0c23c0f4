"""Watching what a replica's metrics do not show: a cache that was emptied within a living process.

Two ways, each where it works: KV events, where the fleet file names their endpoint, and a sentinel block. Either begins
a generation, which ends the epoch at once. Publishing epochs is ``watch.py``'s work alone.
"""

import asyncio
import logging
from contextlib import aclosing

from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.engines.base import Engine
from warmup_tasks.engines.sentinel import Sentinel
from warmup_tasks.errors import WarmupError
from warmup_tasks.serving.epochs import EpochStore

log = logging.getLogger(__name__)


class CacheWatch:
    """Watches the cache of one replica for as long as :meth:`run` runs.

    Args:
        replica: name in the fleet.
        model: served name of its base model.
        engine: of that replica; its owner closes it.
        epochs: where generations begin.
        settings: of the agent.
        label: of this agent, for its sentinel.
    """

    def __init__(
        self, replica: str, model: str, engine: Engine, epochs: EpochStore, settings: AgentSettings, label: str
    ) -> None:
        self._replica, self._engine, self._epochs, self._settings = replica, engine, epochs, settings
        self._sentinel = Sentinel(engine, model, label)
        self._trouble = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until ``stop`` is set."""
        listening = asyncio.create_task(self.listen())
        try:
            while not stop.is_set():
                if self._settings.sentinel_s:
                    await self.look()
                try:
                    await asyncio.wait_for(stop.wait(), self._settings.sentinel_s or None)
                except TimeoutError:
                    continue
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def look(self) -> bool:
        """Ask for the sentinel once; True when it told that the cache was emptied, and a generation began."""
        deadline_s = self._settings.poll_deadline_s
        try:
            metrics = await self._engine.metrics(deadline_s=deadline_s)
            if metrics.is_awake is False or await self._engine.is_paused(deadline_s=deadline_s):
                return False  # the epoch's watch ends the epoch; a request would wait
            if not await self._sentinel.is_cache_lost(metrics, deadline_s=deadline_s):
                return False
        except WarmupError as error:
            self._say(f"the sentinel of {self._replica} tells nothing: {error}")
            return False
        return await self._begin("its sentinel block is gone")

    async def listen(self) -> None:
        """Follow the KV events, where there are any, for as long as they come."""
        events = self._engine.kv_events()
        if events is None:
            return
        async with aclosing(events):
            async for event in events:
                if event.kind in ("cleared", "lost"):
                    await self._begin("its KV events say so" if event.kind == "cleared" else "KV events are missing")

    async def _begin(self, why: str) -> bool:
        while True:
            try:
                await asyncio.to_thread(self._epochs.begin_generation, self._replica)
            except WarmupError as error:  # the epoch ends by itself meanwhile; what was seen must not be forgotten
                self._say(f"{self._replica} lost its cache, which cannot be written down: {error}")
                await asyncio.sleep(self._settings.poll_s)
            else:
                log.info("%s lost its cache: %s", self._replica, why)
                return True

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning(trouble)
        self._trouble = trouble
