"""The engine's loop: continuous batching over the block pool, in time that a physical model sets.

Here live admission, chunked prefill, preemption, the duration of a step and what a finished step brings. Each step
gives every running prompt one token or a chunk of its prefill within a common budget; a prompt's blocks become findable
when they are scheduled, so prompts with a common head that run together compute it once.
"""

import asyncio
import bisect
from collections.abc import Callable
from typing import NamedTuple

from warmup_tasks.engines.double.adapters import AdapterStore
from warmup_tasks.engines.double.answers import AnswerModel, weights_version
from warmup_tasks.engines.double.blocks import BlockPool
from warmup_tasks.engines.double.config import DoubleConfig
from warmup_tasks.engines.double.faults import FaultBoard
from warmup_tasks.engines.double.flights import Flight
from warmup_tasks.engines.double.kv_events import KvEvents
from warmup_tasks.engines.double.metrics import Metrics
from warmup_tasks.engines.double.wire import ApiError

_SHORTEST_WAIT_S = 0.001
_WRONG = b"\xff" * 16


class _Share(NamedTuple):
    flight: Flight
    tokens: int


class Scheduler:
    """Runs prompts. One life: after ``aclose`` nothing moves any more."""

    def __init__(
        self,
        config: DoubleConfig,
        pool: BlockPool,
        adapters: AdapterStore,
        answers: AnswerModel,
        metrics: Metrics,
        kv_events: KvEvents,
        faults: FaultBoard,
        revision: Callable[[], str],
        end_token: int,
    ) -> None:
        self._config, self._pool, self._adapters, self._answers = config, pool, adapters, answers
        self._metrics, self._kv_events, self._faults, self._revision = metrics, kv_events, faults, revision
        self._end_token = end_token
        self.running: list[Flight] = []
        self.waiting: list[Flight] = []
        self.is_paused = False
        self.is_frozen = False
        self.computed_prompt_tokens = 0
        self._count = 0
        self._extra_ms = 0.0
        self._wake = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._due_s = 0.0
        self._loop = asyncio.ensure_future(self._run())

    def add(self, flight: Flight) -> None:
        """Queue a prompt."""
        self._count += 1
        flight.number = self._count
        flight.arrived_s = self._clock()
        flight.take_keys(self._config.block_size, with_salt=not self._faults.now.ignore_salt)
        if self._config.scheduling_policy == "priority":
            bisect.insort(self.waiting, flight)
        else:
            self.waiting.append(flight)
        self._wake.set()

    def abort(self, flight: Flight, reason: str = "abort") -> None:
        """End a prompt early (``abort`` or ``error``); one that has ended stays as it is."""
        if flight.finish_reason is not None:
            return
        if flight in self.running:
            self.running.remove(flight)
            self._release(flight)
        elif flight in self.waiting:
            self.waiting.remove(flight)
        self._metrics.finished[reason].inc()
        flight.finish(reason)
        self._wake.set()

    def abort_all(self, reason: str = "abort") -> None:
        """End every prompt early."""
        for flight in [*self.running, *self.waiting]:
            self.abort(flight, reason)

    def preempt_all(self) -> None:
        """Take the blocks from every running prompt and let it start again."""
        while self.running:
            self._preempt(self.running[-1])

    def pause(self, *, freeze: bool) -> None:
        """Start no new prompt; ``freeze`` also stops the running ones."""
        self.is_paused, self.is_frozen = True, freeze

    def resume(self) -> None:
        """Go on."""
        self.is_paused = self.is_frozen = False
        self._wake.set()

    async def drained(self) -> None:
        """Return when no prompt is running."""
        while self.running:
            await self.running[0].finished.wait()

    def occupied_s(self, tokens: int) -> float:
        """Return how long a pass over ``tokens`` takes that leaves nothing in the cache (embeddings)."""
        latency = self._config.latency
        return (latency.overhead_ms + tokens * latency.per_token_ms) / 1000 * self._config.time_scale

    async def aclose(self) -> None:
        """Stop the loop."""
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            shares = [] if self.is_frozen else self._schedule()
            if not shares:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._pass(self._step_ms(shares) / 1000 * self._config.time_scale)
            self._finish_step(shares)
            self._kv_events.publish()

    async def _pass(self, duration_s: float) -> None:
        """Wait until the step is over. Timers are coarse, so what is below a millisecond is owed to the next step."""
        now = self._clock()
        self._due_s = max(self._due_s, now) + duration_s
        ahead = self._due_s - now
        await asyncio.sleep(ahead if ahead >= _SHORTEST_WAIT_S else 0)

    def _step_ms(self, shares: list[_Share]) -> float:
        latency = self._config.latency
        tokens = sum(share.tokens for share in shares)
        pairs = sum(s.tokens * (s.flight.computed + s.tokens / 2) for s in shares)
        decoding = sum(share.tokens == 1 for share in shares)
        extra, self._extra_ms = self._extra_ms, 0.0
        return (
            latency.overhead_ms
            + tokens * latency.per_token_ms
            + decoding * latency.per_sequence_ms
            + pairs / 1e6 * latency.per_million_pairs_ms
            + extra
        )

    def _schedule(self) -> list[_Share]:
        budget = self._config.max_num_batched_tokens
        shares: list[_Share] = []
        for flight in list(self.running):
            if flight not in self.running:
                continue  # preempted by an earlier one in this very pass
            tokens = min(len(flight.tokens) - flight.computed, budget)
            if tokens and self._grow(flight, tokens):
                shares.append(_Share(flight, tokens))
                self._register(flight, tokens)
                budget -= tokens
        if not self.is_paused:
            self._admit(shares, budget)
        return shares

    def _admit(self, shares: list[_Share], budget: int) -> None:
        adapters = {flight.adapter.number for flight in self.running if flight.adapter}
        for flight in list(self.waiting):
            if budget <= 0 or len(self.running) >= self._config.max_num_seqs:
                break
            if flight.adapter and len(adapters | {flight.adapter.number}) > self._config.max_loras:
                continue
            try:
                if not self._start(flight):
                    break
            except ApiError:
                self.abort(flight, "error")
                continue
            if flight.adapter:
                adapters.add(flight.adapter.number)
            self.waiting.remove(flight)
            self.running.append(flight)
            tokens = min(len(flight.tokens) - flight.computed, budget)
            self._grow(flight, tokens)
            self._register(flight, tokens)
            shares.append(_Share(flight, tokens))
            budget -= tokens

    def _start(self, flight: Flight) -> bool:
        """Find the longest cached head and hold it, if all the rest of the prompt fits as well.

        Raises ``ApiError`` when the adapter has left memory and its folder can no longer be read.
        """
        size = self._config.block_size
        is_caching = self._config.enable_prefix_caching
        hit = self._pool.lookup(flight.keys[: (len(flight.tokens) - 1) // size]) if is_caching else []
        wanted = -(-len(flight.tokens) // size) - len(hit)
        if wanted > self._pool.free_count - self._pool.free_among(hit):
            return False
        adapter_weights = None
        if flight.adapter:
            adapter_weights, was_read = self._adapters.weights(flight.adapter)
            self._extra_ms += self._config.latency.adapter_load_ms if was_read else 0.0
        self._pool.touch(hit)
        flight.begin(hit, size)
        flight.version = weights_version(self._revision(), adapter_weights)
        if flight.cached_tokens is None:
            flight.cached_tokens = flight.computed
            flight.scheduled_s = self._clock()
            self._metrics.queries.inc(len(flight.tokens))
            self._metrics.hits.inc(flight.computed)
        if hit:
            self._extra_ms += self._faults.now.hit_penalty_ms
        return True

    def _grow(self, flight: Flight, tokens: int) -> bool:
        """Give a running prompt the blocks that its next tokens need, taking them from the last one if need be."""
        wanted = -(-(flight.computed + tokens) // self._config.block_size) - len(flight.blocks)
        while wanted > self._pool.free_count:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is flight:
                return False
        if wanted > 0:
            flight.blocks += self._pool.allocate(wanted)
        return True

    def _register(self, flight: Flight, tokens: int) -> None:
        """Make the blocks findable that the next tokens fill."""
        size = self._config.block_size
        first, full = flight.registered, (flight.computed + tokens) // size
        if full <= first:
            return
        flight.take_keys(size, with_salt=not self._faults.now.ignore_salt)
        is_spoiled = self._faults.now.mixed_batches and not flight.adapter and any(f.adapter for f in self.running)
        for index in range(first, full):
            state = flight.next_block_state(size)
            state = _other(state) if is_spoiled else state
            if self._config.enable_prefix_caching:
                self._pool.register(flight.blocks[index], flight.keys[index], state)
        flight.registered = full
        if self._config.enable_prefix_caching:
            self._kv_events.stored(
                flight.keys[first:full],
                flight.keys[first - 1] if first else None,
                flight.tokens[first * size : full * size],
                size,
                (flight.adapter.number, flight.adapter.name) if flight.adapter else None,
                flight.salt,
            )

    def _preempt(self, flight: Flight) -> None:
        self.running.remove(flight)
        self._release(flight)
        flight.computed = 0
        self.waiting.insert(0, flight)
        self._metrics.preemptions.inc()

    def _release(self, flight: Flight) -> None:
        self._pool.free(reversed(flight.blocks))
        flight.blocks = []

    def _finish_step(self, shares: list[_Share]) -> None:
        now = self._clock()
        self._metrics.step_tokens.observe(sum(share.tokens for share in shares))
        for flight, tokens in shares:
            if flight.finish_reason is not None or not flight.blocks:
                continue  # aborted or preempted while the step ran
            self.computed_prompt_tokens += max(0, min(tokens, flight.prompt_tokens - flight.computed))
            flight.computed += tokens
            if flight.computed == len(flight.tokens):
                self._draw(flight, now)

    def _draw(self, flight: Flight, now: float) -> None:
        state = flight.state(self._config.block_size)
        faults = self._faults.now
        if faults.wrong_answers == "always" or (faults.wrong_answers == "on_hit" and flight.cached_tokens):
            state = _other(state)
        draw = self._answers.draw(state, flight.sampling, len(flight.draws), faults.logprob_drift)
        flight.draws.append(draw)
        self._metrics.observe_token(flight, now)
        if draw.token == self._end_token:
            self._end(flight, "stop", now)
        elif len(flight.draws) >= flight.max_tokens:
            self._end(flight, "length", now)
        else:
            flight.tokens.append(draw.token)
            flight.progress.set()

    def _end(self, flight: Flight, reason: str, now: float) -> None:
        self.running.remove(flight)
        self._release(flight)
        self._metrics.observe_end(flight, reason, now)
        flight.finish(reason)


def _other(state: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(state, _WRONG, strict=True))
