"""The front of the simulation: a log, replicas with caches of a given capacity, a warm set, a restart, a trigger.

``simulate`` answers *what if*; it chooses nothing. Caches follow ``lru.py``, time follows ``latency.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.replay.accesses import Accesses, Floats, Ids, Ints
from warmup_tasks.replay.latency import LatencyModel
from warmup_tasks.replay.lru import TouchOrder
from warmup_tasks.replay.triggers import SAVED_WITHIN_S, Firing, Trigger, rolling
from warmup_tasks.signals import BEFORE_S, ROLLING_S, Rolling

WarmSet = Sequence[int] | Ids | Ints
_LEAST_TOUCHES = 1 << 16


class Router(StrEnum):
    """How requests find their replica.

    ``ROUND_ROBIN`` deals them in turn. ``PREFIX_AFFINITY`` sends each to the replica that promises its first token
    soonest, by what its cache holds and how long its queue is; among equals the next in turn.
    """

    ROUND_ROBIN = "round_robin"
    PREFIX_AFFINITY = "prefix_affinity"


@dataclass(frozen=True, slots=True)
class WarmingPace:
    """How a triggered warm-up uses a replica: chunks of so many tokens, and the share of time that it may take."""

    chunk_tokens: int = 256
    duty_share: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What would have happened to the scored requests.

    Attributes:
        asked: blocks of each request, shape (requests,).
        hits: leading blocks that were resident.
        replica: where each request went.
        ttft_ms: time to first token, waiting included.
        computed_tokens: prefill of the requests, without warming.
        warm_tokens: prefill that loading the warm set took before the first request, all replicas together.
        warm_ms: how long that takes on one replica after the other.
        evicted_blocks: by requests and warm-ups.
        load_share: time that slots were busy over the time there was.
        firings: warm-ups that the trigger started, in order.
        ticks: the figures that the trigger saw.
    """

    asked: Ints
    hits: Ids
    replica: Ids
    ttft_ms: Floats
    computed_tokens: int
    warm_tokens: int
    warm_ms: float
    evicted_blocks: int
    load_share: float
    firings: tuple[Firing, ...] = ()
    ticks: tuple[Rolling, ...] = ()

    @property
    def hit_blocks(self) -> int:
        """Leading hits of all scored requests."""
        return int(self.hits.sum())

    @property
    def asked_blocks(self) -> int:
        """Blocks of all scored requests."""
        return int(self.asked.sum())

    @property
    def hit_ratio(self) -> float:
        """Hits over blocks asked for; 0 where nothing was asked."""
        return self.hit_blocks / self.asked_blocks if self.asked_blocks else 0.0

    def ttft_quantile_ms(self, share: float) -> float | None:
        """Return a quantile of the time to first token; None where nothing was asked."""
        return float(np.quantile(self.ttft_ms, share)) if len(self.ttft_ms) else None


def simulate(
    accesses: Accesses,
    capacity_blocks: int,
    *,
    warm: WarmSet | Sequence[WarmSet] | None = None,
    restart_at_s: float | None = None,
    window_s: float | None = None,
    replicas: int = 1,
    router: Router = Router.ROUND_ROBIN,
    latency: LatencyModel | None = None,
    touch_order: TouchOrder = TouchOrder.LEADING_FIRST,
    trigger: Trigger | None = None,
    pace: WarmingPace | None = None,
    tick_s: float = 1.0,
) -> Result:
    """Play a log from empty caches on.

    A restart empties everything, so what came before it does not matter to what comes after: with ``restart_at_s`` only
    the requests from there on are played and scored.

    Args:
        accesses: the log.
        capacity_blocks: blocks that fit into each replica.
        warm: block numbers loaded before the first request, in the order of loading, hottest last; whole prefixes,
            since a block without the blocks before it is never hit. One list for all replicas, or one list a replica.
        restart_at_s: play from here on, on the log's clock; None: from the log's beginning.
        window_s: play this long; None: to the log's end.
        replicas: how many, of one kind.
        router: how requests find them.
        latency: of each replica; None: the default line.
        touch_order: which of a request's blocks grow old first.
        trigger: asked every ``tick_s`` for each replica; the blocks it returns are loaded beside the traffic.
        pace: of these warm-ups.
        tick_s: see ``trigger``.

    Raises:
        ConfigurationError: a capacity below 0, no replica, or a block number that the log does not have.
    """
    if capacity_blocks < 0 or replicas < 1:
        raise ConfigurationError("simulate: capacity_blocks must be 0 or more, replicas 1 or more")
    since = -np.inf if restart_at_s is None else restart_at_s
    begin = accesses.times_s[0] if restart_at_s is None and len(accesses) else since
    played = accesses.between(since, np.inf if window_s is None else begin + window_s)
    run = _Run(played, capacity_blocks, replicas, router, latency or LatencyModel(), touch_order, pace or WarmingPace())
    warm_blocks = run.preload(_per_replica(warm, replicas))
    if trigger is None:
        run.advance(len(played), np.inf)
    else:
        run.advance_with(trigger, tick_s)
    return run.result(warm_blocks)


def _per_replica(warm: WarmSet | Sequence[WarmSet] | None, replicas: int) -> list[Ids]:
    if warm is None or len(warm) == 0:
        return []
    if np.ndim(warm[0]) == 0:
        return [np.asarray(warm, np.int32)] * replicas
    if len(warm) != replicas:
        raise ConfigurationError(f"simulate: {len(warm)} warm sets for {replicas} replicas")
    return [np.asarray(one, np.int32) for one in warm]


class _Run:
    """The arrays of one simulation and the steps over them."""

    def __init__(
        self,
        played: Accesses,
        capacity: int,
        replicas: int,
        router: Router,
        latency: LatencyModel,
        touch_order: TouchOrder,
        pace: WarmingPace,
    ) -> None:
        from warmup_tasks.replay.compiled import timed

        self._timed, self._played, self._latency, self._replicas = timed, played, latency, replicas
        count, room = len(played), max(_LEAST_TOUCHES, 2 * min(capacity, played.blocks))
        routes = np.full(count, -1, np.int32) if router is Router.PREFIX_AFFINITY else np.arange(count) % replicas
        self._start_s = float(played.times_s[0]) if count else 0.0
        self._requests = timed.Requests(
            np.require(played.ids, np.int32, ["C", "W"]),
            np.require(played.offsets, np.int64, ["C", "W"]),
            (played.times_s - self._start_s) * 1000,
            np.require(played.prompt_tokens, np.int64, ["C", "W"]),
            routes.astype(np.int32),
            np.zeros(count, np.int32),
            np.zeros(count, np.float64),
        )
        self._caches = timed.Caches(
            np.full((replicas, played.blocks), -1, np.int64),
            np.full((replicas, played.blocks), -1, np.int32),
            np.empty((replicas, room), np.int32),
            head=np.zeros(replicas, np.int64),
            tail=np.zeros(replicas, np.int64),
            resident=np.zeros(replicas, np.int64),
            evicted=np.zeros(replicas, np.int64),
            free_at_ms=np.zeros((replicas, latency.concurrency), np.float64),
            busy_ms=np.zeros(replicas, np.float64),
        )
        self._warm_ups = timed.WarmUps(
            np.zeros(0, np.int32),
            position=np.zeros(replicas, np.int64),
            stop=np.zeros(replicas, np.int64),
            next_ms=np.zeros(replicas, np.float64),
            firing=np.zeros(replicas, np.int64),
            fired_ms=np.zeros(0, np.float64),
            spent_blocks=np.zeros(0, np.int64),
            saved_blocks=np.zeros(0, np.int64),
            done_ms=np.zeros(0, np.float64),
        )
        self._rules = timed.Rules(
            capacity,
            played.block_tokens,
            float(latency.base_ms),
            float(latency.ms_per_token),
            touch_order is TouchOrder.TRAILING_FIRST,
            SAVED_WITHIN_S * 1000,
            max(1, pace.chunk_tokens // played.block_tokens),
            float(pace.duty_share),
        )
        self._asked = played.lengths()
        self._next, self._fired_on, self._ticks = 0, list[int](), list[Rolling]()

    def preload(self, warm: list[Ids]) -> int:
        """Load each replica's warm set; return the blocks that were inserted."""
        inserted = 0
        for replica, ids in enumerate(warm):
            self._check(ids)
            inserted += self._timed.preload(self._caches, replica, ids, self._rules.capacity)
        self._caches.evicted[:] = 0
        return inserted

    def advance(self, stop: int, until_ms: float) -> None:
        """Play the requests up to ``stop``, and warm-ups up to ``until_ms``."""
        self._timed.advance(self._requests, self._caches, self._warm_ups, self._rules, self._next, stop, until_ms)
        self._next = stop

    def advance_with(self, trigger: Trigger, tick_s: float) -> None:
        """Play everything, asking the trigger at each tick."""
        times_s, tick, oldest = self._played.times_s, 1, 0
        while self._next < len(times_s):
            now_s = self._start_s + tick * tick_s
            self.advance(int(np.searchsorted(times_s, now_s, side="right")), (now_s - self._start_s) * 1000)
            while oldest < self._next and self._is_past(oldest, now_s):
                oldest += 1
            for replica in range(self._replicas):
                self._ask(trigger, replica, now_s, oldest)
            tick += 1
        self.advance(len(times_s), np.inf)

    def _is_past(self, request: int, now_s: float) -> bool:
        arrived, took_s = self._played.times_s[request], self._requests.ttft_ms[request] / 1000
        return bool(max(arrived + BEFORE_S, arrived + took_s) <= now_s - ROLLING_S)

    def _ask(self, trigger: Trigger, replica: int, now_s: float, oldest: int) -> None:
        seen = slice(oldest, self._next)
        is_warming = bool(self._warm_ups.position[replica] < self._warm_ups.stop[replica])
        figures = rolling(
            now_s,
            self._start_s,
            replica,
            self._played.times_s[seen],
            self._asked[seen],
            self._requests.hits[seen],
            self._requests.ttft_ms[seen],
            self._requests.replica[seen],
            is_warming=is_warming,
        )
        self._ticks.append(figures)
        blocks = trigger(figures)
        if blocks is not None and len(blocks) and not is_warming:
            self._fire(replica, now_s, np.asarray(blocks, np.int32))

    def _fire(self, replica: int, now_s: float, ids: Ids) -> None:
        self._check(ids)
        now_ms, firing, warm_ups = (now_s - self._start_s) * 1000, len(self._fired_on), self._warm_ups
        self._fired_on.append(replica)
        warm_ups.position[replica] = len(warm_ups.ids)
        warm_ups.stop[replica] = len(warm_ups.ids) + len(ids)
        warm_ups.next_ms[replica], warm_ups.firing[replica] = now_ms, firing
        self._warm_ups = warm_ups._replace(
            ids=np.concatenate([warm_ups.ids, ids]),
            fired_ms=np.append(warm_ups.fired_ms, now_ms),
            spent_blocks=np.append(warm_ups.spent_blocks, 0),
            saved_blocks=np.append(warm_ups.saved_blocks, 0),
            done_ms=np.append(warm_ups.done_ms, np.nan),
        )

    def _check(self, ids: Ids) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._played.blocks:
            raise ConfigurationError(f"simulate: block numbers to load must lie in [0, {self._played.blocks})")

    def result(self, warm_blocks: int) -> Result:
        """Return what happened."""
        requests, played, caches = self._requests, self._played, self._caches
        cached = requests.hits * np.int64(played.block_tokens)
        warm_tokens = warm_blocks * played.block_tokens
        span_ms = float(max(requests.times_ms[-1], caches.free_at_ms.max())) if len(played) else 0.0
        return Result(
            asked=self._asked,
            hits=requests.hits,
            replica=requests.replica,
            ttft_ms=requests.ttft_ms,
            computed_tokens=int(np.maximum(1, requests.prompt_tokens - cached).sum()),
            warm_tokens=warm_tokens,
            warm_ms=self._latency.ms_per_token * warm_tokens,
            evicted_blocks=int(caches.evicted.sum()),
            load_share=float(caches.busy_ms.sum() / (span_ms * caches.free_at_ms.size)) if span_ms else 0.0,
            firings=tuple(self._firings()),
            ticks=tuple(self._ticks),
        )

    def _firings(self) -> list[Firing]:
        warm_ups, tokens = self._warm_ups, self._played.block_tokens
        return [
            Firing(
                replica,
                self._start_s + float(warm_ups.fired_ms[firing]) / 1000,
                None if np.isnan(done := warm_ups.done_ms[firing]) else self._start_s + float(done) / 1000,
                int(warm_ups.spent_blocks[firing]) * tokens,
                int(warm_ups.saved_blocks[firing]) * tokens,
            )
            for firing, replica in enumerate(self._fired_on)
        ]
