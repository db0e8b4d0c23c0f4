"""One replica, assembled: cache, scheduler, adapters, metrics and events, and what ends its epochs.

Here live the replica's life cycle (restart, sleep, pause, reset, new weights). No HTTP.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal, NamedTuple

from warmup_tasks.engines.double.adapters import Adapter, AdapterStore
from warmup_tasks.engines.double.answers import AnswerModel, next_key, next_state, root_key, weights_version
from warmup_tasks.engines.double.blocks import BlockPool
from warmup_tasks.engines.double.config import DoubleConfig
from warmup_tasks.engines.double.faults import FaultBoard
from warmup_tasks.engines.double.flights import ROOT_STATE
from warmup_tasks.engines.double.kv_events import KvEvents
from warmup_tasks.engines.double.metrics import Metrics
from warmup_tasks.engines.double.scheduler import Scheduler
from warmup_tasks.engines.double.tokenizer import Tokenizer

PauseMode = Literal["abort", "wait", "keep"]


class Residency(NamedTuple):
    """A prompt's leading blocks: how many are in the cache, and how many of those today's weights would have made."""

    found: int
    right: int


class Core:
    """The replica. Must be made inside a running event loop."""

    def __init__(self, config: DoubleConfig) -> None:
        self.config = config
        self.faults = FaultBoard(config.faults, config.seed)
        self.tokenizer = Tokenizer(config.template_version)
        self.kv_events = KvEvents(config.kv_events_endpoint, config.kv_events_replay_endpoint, config.kv_events_topic)
        self.revision = config.weights_revision
        self.weight_label = "default"
        self._answers = AnswerModel(self.tokenizer, config.seed)
        self._begin_life()

    def _begin_life(self) -> None:
        config = self.config
        cache = {
            "block_size": str(config.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(config.enable_prefix_caching),
            "num_gpu_blocks": str(config.num_gpu_blocks),
        }
        self.sleep_level: int | None = None
        self.metrics = Metrics(config.model, config.max_model_len, cache, config.max_loras)
        self.adapters = AdapterStore(config.model, config.max_lora_rank, config.max_cpu_loras)
        for name, path in config.adapters.items():
            self.adapters.load(name, path)
        self.pool = BlockPool(
            config.num_gpu_blocks - 1,
            on_evicted=self.kv_events.removed,
            forgets_to_evict=lambda: self.faults.now.forget_to_evict,
        )
        self.scheduler = Scheduler(
            config,
            self.pool,
            self.adapters,
            self._answers,
            self.metrics,
            self.kv_events,
            self.faults,
            lambda: self.revision,
            self.tokenizer.end,
        )

    @property
    def is_sleeping(self) -> bool:
        """Whether it sleeps at any level; a pause counts."""
        return self.sleep_level is not None or self.scheduler.is_paused

    async def restart(self) -> None:
        """Begin a new life in place: empty cache, counters at 0, later process start, adapters of the start only."""
        self.scheduler.abort_all("error")
        await self.scheduler.aclose()
        self.kv_events.begin_again()
        self._begin_life()

    async def load_adapter(self, name: str, path: str, *, in_place: bool) -> Adapter:
        """Load an adapter, taking its time."""
        loading_ms = self.config.latency.adapter_load_ms * self.config.time_scale
        await asyncio.sleep((loading_ms + self.faults.now.slow_adapter_load_ms) / 1000)
        return self.adapters.load(name, path, in_place=in_place)

    def reset_prefix_cache(self, *, reset_running: bool = False) -> bool:
        """Forget all cached content; False while a request holds blocks."""
        if reset_running:
            self.scheduler.preempt_all()
        if not self.pool.reset():
            return False
        self.kv_events.cleared()
        self.kv_events.publish()
        return True

    def residency(self, tokens: Sequence[int], adapter: Adapter | None, salt: str | None) -> Residency:
        """Look at a prompt's whole blocks without touching them: what a probe cannot do, and no engine offers."""
        size, state = self.config.block_size, ROOT_STATE
        keys: list[bytes] = []
        states: list[bytes] = []
        key = root_key(adapter.key if adapter else None, None if self.faults.now.ignore_salt else salt)
        weights = self.adapters.weights(adapter)[0] if adapter else None
        version = weights_version(self.revision, weights)
        for start in range(0, len(tokens) - size + 1, size):
            block = tokens[start : start + size]
            key, state = next_key(key, block), next_state(state, version, block)
            keys.append(key)
            states.append(state)
        found = self.pool.lookup(keys)
        right = next((n for n, block in enumerate(found) if block.state != states[n]), len(found))
        return Residency(len(found), right)

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Start no new request; what is under way is aborted, waited for or kept as it stands."""
        self.scheduler.pause(freeze=mode == "keep")
        if mode == "abort":
            self.scheduler.abort_all()
        elif mode == "wait":
            await self.scheduler.drained()
        if clear_cache and mode != "keep":
            self.reset_prefix_cache()

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Fall asleep: from level 1 on the cache is gone."""
        await self.pause(mode, clear_cache=level >= 1)
        self.sleep_level = level
        self.metrics.set_sleep_level(level)

    def wake(self) -> None:
        """Wake up and go on."""
        self.sleep_level = None
        self.metrics.set_sleep_level(None)
        self.scheduler.resume()

    def metrics_page(self) -> bytes:
        """Return the metrics as they are now."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        self.metrics.running.set(len(running))
        self.metrics.waiting.set(len(waiting))
        self.metrics.usage.set(self.pool.held_count / self.pool.capacity)
        self.metrics.set_adapters(
            sorted({f.adapter.name for f in waiting if f.adapter}),
            sorted({f.adapter.name for f in running if f.adapter}),
        )
        return self.metrics.page(self.faults.now.missing_metrics)

    async def aclose(self) -> None:
        """Stop everything."""
        self.scheduler.abort_all()
        await self.scheduler.aclose()
        await self.kv_events.aclose()
