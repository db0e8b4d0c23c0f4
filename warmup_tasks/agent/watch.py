"""Watching one replica: look at its metrics, publish its epoch, withdraw it at once when the look fails.

A new process start is a new epoch by itself; within one process, counters that fell, sleep and pause begin a new
generation. Where an older process answers after a newer one, several share the address: that is no replica, and has no
epoch. What was last seen is kept in Redis, so a restarted agent also notices what happened while there was none. What
empties a cache without a trace in the metrics is ``cache_watch.py``'s matter.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from warmup_tasks.agent.live_watch import LiveWatch
from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.engines.base import Engine, EngineMetrics
from warmup_tasks.engines.epochs import epoch_of
from warmup_tasks.errors import WarmupError
from warmup_tasks.serving.epochs import EpochRecord, EpochStore, Observation

log = logging.getLogger(__name__)

_SEVERAL_FOR = timedelta(minutes=10)  # two processes dealt by lot do not look like one for so long


class ReplicaWatch:
    """Watches one replica for as long as :meth:`run` runs.

    Args:
        replica: name in the fleet.
        engine: of that replica; its owner closes it.
        epochs: where epochs are published.
        settings: of the agent.
        metrics: of the agent.
        live: of the same replica; told of every look that found its epoch. None: nobody asks.
        clock: gives the present time with zone.
    """

    def __init__(
        self,
        replica: str,
        engine: Engine,
        epochs: EpochStore,
        settings: AgentSettings,
        metrics: AgentMetrics,
        live: LiveWatch | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._replica = replica
        self._engine = engine
        self._epochs = epochs
        self._settings = settings
        self._metrics = metrics
        self._live = live
        self._clock = clock
        self._epoch: str | None = None
        self._troubles: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until ``stop`` is set."""
        while not stop.is_set():
            await self.look()
            try:
                await asyncio.wait_for(stop.wait(), self._settings.poll_s)
            except TimeoutError:
                continue

    async def look(self) -> str | None:
        """Look once; return the epoch that is published afterwards, or None: unknown."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            scrape = await self._engine.metrics(deadline_s=self._settings.poll_deadline_s)
            left_s = max(self._settings.poll_deadline_s - (loop.time() - started), 0.001)
            is_paused = await self._engine.is_paused(deadline_s=left_s)
        except WarmupError as error:
            self._metrics.failures.labels(self._replica).inc()
            self._say(f"{self._replica} cannot be seen: {error}")
            epoch = await self._store(self._withdraw)
        else:
            self._metrics.looks.labels(self._replica).inc()
            epoch = await self._store(lambda: self._publish(scrape, bool(is_paused)))
        self._metrics.is_epoch_known.labels(self._replica).set(epoch is not None)
        return epoch

    async def _store(self, work: Callable[[], str | None]) -> str | None:
        try:
            return await asyncio.to_thread(work)
        except WarmupError as error:
            self._metrics.store_failures.inc()
            self._say(f"{error}; its epoch is unknown until that works again")
            return None

    def _withdraw(self) -> None:
        self._epochs.forget(self._replica)

    def _publish(self, scrape: EngineMetrics, is_paused: bool) -> str | None:
        before, moment = self._epochs.last_seen(self._replica), self._clock()
        seen = Observation(
            replica=self._replica,
            process_start_s=scrape.process_start_s,
            prefix_queries_tokens=scrape.prefix_queries_tokens,
            prompt_tokens=scrape.prompt_tokens,
            is_awake=scrape.is_awake is not False and not is_paused,
            several_seen_at=_several_seen_at(before, scrape, moment),
        )
        if _has_lost_cache(before, seen):
            self._epochs.begin_generation(self._replica)
        self._epochs.keep(seen)
        if not seen.is_awake:
            self._say(f"{self._replica} {'is paused' if is_paused else 'sleeps'}")
            self._withdraw()
            return None
        if seen.several_seen_at is not None:
            self._say(f"several engine processes answer for {self._replica}: name each by an address of its own")
            self._withdraw()
            return None
        generation = self._epochs.generation(self._replica)
        epoch = epoch_of(scrape, generation)
        record = EpochRecord(
            replica=self._replica,
            epoch=epoch,
            observed_at=moment,
            detail=f"running {scrape.running:g}, waiting {scrape.waiting:g}, cache {scrape.kv_usage_share:.0%} in use",
        )
        is_published = self._epochs.publish(record, generation=generation, ttl_s=self._settings.epoch_ttl_s)
        if not is_published:
            return None
        if self._epoch is not None and epoch != self._epoch:
            self._metrics.epochs_begun.labels(self._replica).inc()
        if epoch != self._epoch or self._troubles:
            log.info("%s is in epoch %s", self._replica, epoch)
        self._epoch = epoch
        self._troubles.clear()
        if self._live is not None:
            self._live.see(scrape, epoch, moment, before)
        return epoch

    def _say(self, trouble: str) -> None:
        # Once for each trouble, not at every look.
        if trouble not in self._troubles:
            log.warning(trouble)
        self._troubles.add(trouble)


def _several_seen_at(before: Observation | None, now: EngineMetrics, moment: datetime) -> datetime | None:
    if before is None:
        return None
    if now.process_start_s < before.process_start_s:
        return moment
    if before.several_seen_at is not None and moment - before.several_seen_at < _SEVERAL_FOR:
        return before.several_seen_at
    return None


def _has_lost_cache(before: Observation | None, now: Observation) -> bool:
    if before is None or before.process_start_s != now.process_start_s:
        return False  # a new process is a new epoch by itself
    if before.is_awake and not now.is_awake:
        return True
    return now.prefix_queries_tokens < before.prefix_queries_tokens or now.prompt_tokens < before.prompt_tokens
