"""How fast a replica may be warmed while it serves live traffic: a cap in prefill tokens a minute, in steps (4.3).

The cap follows live traffic's own P99: ``base · max(0.3, margin)``, nothing while the SLO is violated. Below it warming
yields to whatever the replica computes, up to the floor. Whether there is live traffic, and how it fares, is read from
the engine's metrics, our own requests taken out. Nothing is sent here.
"""

import asyncio
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from warmup_tasks.engines.base import EngineMetrics, Generation
from warmup_tasks.engines.figures import Buckets, minus, quantile_ms
from warmup_tasks.errors import RejectItemError
from warmup_tasks.items import Reason
from warmup_tasks.settings import RunPolicy

WINDOW_S = 60.0
FLOOR = 0.3
"""The part of the base that a window keeps, unless the SLO is violated (spec 4.3)."""
_LIVE_BLOCKS = 64  # the agent's sentinels ask for less in a window, and so little is not hurt
_KNOWN_AFTER_S = 5.0  # before that, take it that there is live traffic
_PAUSE_S = 0.1
_UNHURT = 5  # fewer first tokens of live traffic say nothing of its P99


def margin(p99_ms: float | None, slo_ms: float, target_ms: float) -> float:
    """Return how far live traffic is from its SLO: 1 at the target or where nothing was measured, 0 at the SLO."""
    if p99_ms is None:
        return 1.0
    return min(1.0, max(0.0, (slo_ms - p99_ms) / (slo_ms - target_ms)))


def cap_tokens(base_tokens: float, p99_ms: float | None, slo_ms: float, target_ms: float) -> float:
    """Return the prefill tokens that warming may take in a window (spec 4.3); 0 while the SLO is violated."""
    if p99_ms is not None and p99_ms > slo_ms:
        return 0.0
    return base_tokens * max(FLOOR, margin(p99_ms, slo_ms, target_ms))


@dataclass(slots=True)
class Grant:
    """Leave to prefill ``tokens`` from ``at_s`` on; fewer when it turns out that some were cached."""

    at_s: float
    tokens: int
    is_paced: bool


@dataclass(frozen=True, slots=True)
class PaceAccount:
    """What became of one replica's pace.

    Attributes:
        tokens: computed in all.
        paced_tokens: of these, while there was live traffic.
        most_in_window: paced tokens in the fullest 60 s.
        least_cap: the lowest cap that held; None: there never was live traffic.
        pauses: times that a step had to wait; ``paused_s`` is how long, all together.
        violated_s: of these, how long because the SLO was violated.
    """

    tokens: int
    paced_tokens: int
    most_in_window: int
    least_cap: float | None
    pauses: int
    paused_s: float
    violated_s: float


class Pacer:
    """Grants prefill tokens on one replica.

    Args:
        replica: its name, for messages.
        base_tokens: what warming may take in 60 s while live traffic is well.
        policy: SLO, target, step and how long a step may wait.
        scrape: looks at the replica.
        clock: seconds, never falling.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        replica: str,
        base_tokens: float,
        policy: RunPolicy,
        scrape: Callable[[], Awaitable[EngineMetrics]],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._replica, self._base, self._policy = replica, base_tokens, policy
        self._scrape, self._clock, self._sleep = scrape, clock, sleep
        self._turn = asyncio.Lock()
        self._scrapes: deque[tuple[float, EngineMetrics]] = deque()
        self._own: deque[tuple[float, int, float]] = deque()  # when it ended, prompt tokens, TTFT in s
        self._granted: deque[Grant] = deque()
        self._in_flight = 0
        self._began_s = clock()
        self._sums: Counter[str] = Counter()
        self._most, self._least_cap = 0, math.inf
        self._paused_s = self._violated_s = 0.0

    async def grant(self, wanted: int, *, is_whole: bool) -> Grant:
        """Wait for room and return how many of ``wanted`` tokens may be prefilled now; call :meth:`ended` afterwards.

        Args:
            wanted: tokens that the rest of the prompt has.
            is_whole: all or nothing; else a step may be granted alone.

        Raises:
            RejectItemError: ``LIVE_TRAFFIC``, when there was no room for ``pace_wait_s``.
        """
        async with self._turn:
            began_s, has_waited = self._clock(), False
            while True:
                if (granted := await self._room(wanted, is_whole)) is not None:
                    self._in_flight += 1
                    return granted
                self._sums["pauses"] += not has_waited
                has_waited = True
                if self._clock() - began_s > self._policy.pace_wait_s:
                    raise RejectItemError(Reason.LIVE_TRAFFIC, f"{self._replica}: {self._policy.pace_wait_s:g} s")
                await self._sleep(_PAUSE_S)
                self._paused_s += _PAUSE_S

    def ended(self, granted: Grant, answer: Generation | None) -> None:
        """Take note that a granted request has ended; one that failed leaves no trace in the engine's figures."""
        self._in_flight -= 1
        if answer is None:
            return
        prompt_tokens = granted.tokens if answer.prompt_tokens is None else answer.prompt_tokens
        self._own.append((self._clock(), prompt_tokens, answer.ttft_ms / 1000))
        if answer.cached_tokens is not None:
            cached = granted.tokens - min(granted.tokens, max(0, prompt_tokens - answer.cached_tokens))
            granted.tokens -= cached
            self._sums["tokens"] -= cached
            self._sums["paced"] -= cached if granted.is_paced else 0

    def account(self) -> PaceAccount:
        """Return what became of it so far."""
        return PaceAccount(
            tokens=self._sums["tokens"],
            paced_tokens=self._sums["paced"],
            most_in_window=self._most,
            least_cap=None if math.isinf(self._least_cap) else self._least_cap,
            pauses=self._sums["pauses"],
            paused_s=round(self._paused_s, 3),
            violated_s=round(self._violated_s, 3),
        )

    async def _room(self, wanted: int, is_whole: bool) -> Grant | None:
        now, now_s = await self._scrape(), self._clock()
        self._look(now, now_s)
        others = now.running + now.waiting - self._in_flight
        if not self._is_live(others, now_s):
            self._sums["tokens"] += wanted
            return Grant(now_s, wanted, is_paced=False)
        p99_ms = self._live_p99_ms()
        cap = cap_tokens(self._base, p99_ms, self._policy.slo_ttft_ms, self._policy.target_ttft_ms)
        self._least_cap = min(self._least_cap, cap)
        if not cap:
            self._violated_s += _PAUSE_S
            return None
        step = wanted if is_whole else min(wanted, self._policy.pace_step_tokens)
        spent = sum(granted.tokens for granted in self._granted)
        is_first = not self._granted  # a whole prompt longer than the cap takes a window to itself
        if not is_first and (spent + step > cap or self._must_yield(others, cap, now_s)):
            return None
        granted = Grant(now_s, step, is_paced=True)
        self._granted.append(granted)
        self._sums["tokens"] += step
        self._sums["paced"] += step
        self._most = max(self._most, spent + step)
        return granted

    def _must_yield(self, others: float, cap: float, now_s: float) -> bool:
        """Say whether the next step waits: for its share of the window, and for live requests down to the floor."""
        last = self._granted[-1]
        rate = (FLOOR * self._base if others > 0 else cap) / WINDOW_S
        return now_s - last.at_s < last.tokens / rate

    def _look(self, now: EngineMetrics, now_s: float) -> None:
        if self._scrapes and now.process_start_s != self._scrapes[-1][1].process_start_s:
            self._scrapes.clear()
        self._scrapes.append((now_s, now))
        while len(self._scrapes) > 1 and self._scrapes[1][0] <= now_s - WINDOW_S:
            self._scrapes.popleft()
        while self._own and self._own[0][0] <= now_s - WINDOW_S:
            self._own.popleft()
        while self._granted and self._granted[0].at_s <= now_s - WINDOW_S:
            self._granted.popleft()

    def _is_live(self, others: float, now_s: float) -> bool:
        if others > 0 or now_s - self._began_s < _KNOWN_AFTER_S:
            return True
        (then_s, then), (_, now) = self._scrapes[0], self._scrapes[-1]
        own = sum(tokens for ended_s, tokens, _ in self._own if ended_s > then_s)
        return now.prompt_tokens - then.prompt_tokens - own > _LIVE_BLOCKS * now.block_size

    def _live_p99_ms(self) -> float | None:
        (then_s, then), (_, now) = self._scrapes[0], self._scrapes[-1]
        own = [ttft_s for ended_s, _, ttft_s in self._own if ended_s > then_s]
        return quantile_ms(_without(minus(now.first_tokens, then.first_tokens), own), 0.99, least=_UNHURT)


def _without(histogram: Buckets, own_s: list[float]) -> Buckets:
    """Return a cumulative histogram without our own requests, each taken out of the bucket that its time falls into."""
    if not own_s or not histogram:
        return histogram
    bounds = [bound for bound, _ in histogram]
    ours = Counter(min(bisect_left(bounds, time), len(bounds) - 1) for time in own_s)
    left, below, total = [], 0.0, 0.0
    for index, (bound, count) in enumerate(histogram):
        total += max(0.0, count - below - ours[index])
        below = count
        left.append((bound, total))
    return tuple(left)
