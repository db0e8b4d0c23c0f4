"""The pace beside live traffic, in fake time: tokens a window, yielding, the floor, standing still, whose requests.

Live traffic is simulated by its effect on the engine's metrics alone; no figure here is a wall-clock time.
"""

import asyncio
from collections.abc import Iterator

import pytest

from warmup_tasks.engines.base import EngineMetrics, Generation, GenerationRequest
from warmup_tasks.errors import RejectItemError
from warmup_tasks.items import PromptBody, Reason
from warmup_tasks.settings import RunPolicy
from warmup_tasks.warming.paced import PacedEngine
from warmup_tasks.warming.pacer import FLOOR, WINDOW_S, Pacer, cap_tokens, margin

BASE = 6000.0
POLICY = RunPolicy(is_paced=True, slo_ttft_ms=1000.0, target_ttft_ms=500.0, pace_step_tokens=100, pace_wait_s=300.0)
BOUNDS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, float("inf"))


class World:
    """A replica in fake time: live requests come ``qps`` a second, and warming pieces are noted when they are sent."""

    def __init__(self, *, qps: float = 0.0, ttft_s: float = 0.08, busy: float = 0.0) -> None:
        self.now_s, self.qps, self.ttft_s, self.busy = 0.0, qps, ttft_s, busy
        self.counts = [0.0] * len(BOUNDS)
        self.tokens, self.owed = 0.0, 0.0
        self.sent: list[tuple[float, int]] = []
        self.in_flight = self.most_in_flight = 0

    async def sleep(self, seconds: float) -> None:
        self.pass_(seconds)
        await asyncio.sleep(0)

    async def until(self, moment_s: float) -> None:
        while self.now_s < moment_s:
            await self.sleep(0.0)

    def pass_(self, seconds: float) -> None:
        self.now_s += seconds
        self.owed += self.qps * seconds
        while self.owed >= 1:
            self.owed -= 1
            self.request(self.ttft_s, 1000)

    def request(self, ttft_s: float, tokens: int) -> None:
        self.counts[next(place for place, bound in enumerate(BOUNDS) if ttft_s <= bound)] += 1
        self.tokens += tokens

    async def scrape(self) -> EngineMetrics:
        total, cumulative = 0.0, []
        for bound, count in zip(BOUNDS, self.counts, strict=True):
            total += count
            cumulative.append((bound, total))
        return EngineMetrics(
            process_start_s=1.0, prefix_queries_tokens=self.tokens, prefix_hits_tokens=0, prompt_tokens=self.tokens,
            kv_usage_share=0, running=self.in_flight + self.busy, waiting=0, block_size=16, capacity_blocks=1000,
            first_tokens=tuple(cumulative),
        )  # fmt: skip

    async def generate(self, request: GenerationRequest, *, deadline_s: float) -> Generation:
        tokens = len(request.body.token_ids or [])
        done = sum(n for _, n in self.sent) if request.cache_salt is None else 0
        cached = 0 if request.cache_salt else min(done, tokens)
        self.sent.append((self.now_s, tokens - cached))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        self.pass_(0.02)
        self.request(0.02, tokens)
        return Generation("", (), (), (), 20.0, 20.0, tokens, cached, 1)

    def most_in_any_window(self) -> int:
        ends = [at for at, _ in self.sent]
        return max((sum(n for at, n in self.sent if end - WINDOW_S < at <= end) for end in ends), default=0)


def engine(world: World, *, in_steps: bool = True, policy: RunPolicy = POLICY) -> tuple[PacedEngine, Pacer]:
    pacer = Pacer("r0", BASE, policy, world.scrape, lambda: world.now_s, world.sleep)
    inner: object = world
    return PacedEngine(inner, pacer, in_steps=in_steps), pacer  # type: ignore[arg-type]


def prefix(tokens: int, salt: str | None = None, **options: object) -> GenerationRequest:
    return GenerationRequest(PromptBody(token_ids=list(range(tokens))), "m", cache_salt=salt, **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def known(monkeypatch) -> Iterator[None]:
    """Let a pacer know at once whether there is live traffic; the careful beginning has a test of its own."""
    monkeypatch.setattr("warmup_tasks.warming.pacer._KNOWN_AFTER_S", 0.0)
    return


def test_the_cap_follows_the_margin_down_to_the_floor_and_is_nothing_beyond_the_slo():
    assert [margin(p99, 1000, 500) for p99 in (None, 400, 500, 750, 1000, 2000)] == [1, 1, 1, 0.5, 0, 0]
    caps = [cap_tokens(BASE, p99, 1000, 500) for p99 in (None, 500, 750, 900, 1000, 1001)]
    assert caps == [BASE, BASE, 0.5 * BASE, FLOOR * BASE, FLOOR * BASE, 0.0]


async def test_without_live_traffic_nothing_is_held_back():
    world = World()
    paced, pacer = engine(world)
    await asyncio.gather(*(paced.generate(prefix(5000, f"s{n}"), deadline_s=9) for n in range(4)))
    assert [tokens for _, tokens in world.sent] == [5000] * 4
    assert world.most_in_flight == 4
    assert pacer.account().paced_tokens == 0
    assert pacer.account().pauses == 0


async def test_beside_live_traffic_a_prefix_goes_in_steps_and_no_window_exceeds_the_cap():
    world = World(qps=2)
    world.pass_(30)
    paced, pacer = engine(world)
    await pacer._room(1, True)  # the look that finds the traffic
    world.pass_(30)
    answer = await paced.generate(prefix(20_000), deadline_s=9)
    assert answer.prompt_tokens == 20_000
    assert {tokens for _, tokens in world.sent[:-1]} == {100}
    assert 0.8 * BASE < world.most_in_any_window() <= BASE
    assert pacer.account().most_in_window <= BASE
    assert pacer.account().least_cap == BASE
    assert pacer.account().pauses > 0


async def test_while_live_requests_are_computed_the_floor_is_kept_and_no_more():
    world = World(qps=2, busy=1.0)
    paced, _ = engine(world)
    await paced.generate(prefix(10_000), deadline_s=9)
    assert 0.8 * FLOOR * BASE < world.most_in_any_window() <= FLOOR * BASE


async def test_while_the_slo_is_violated_warming_stands_still_then_goes_on():
    world = World(qps=2, ttft_s=2.0, busy=1.0)
    paced, pacer = engine(world)
    world.pass_(30)
    warming = asyncio.create_task(paced.generate(prefix(2000), deadline_s=9))
    await world.until(100)
    before = sum(tokens for at, tokens in world.sent if at > 40)
    world.ttft_s = 0.08
    await warming
    assert before == 0, "from the first look on it stands still"
    assert pacer.account().violated_s > 50
    assert pacer.account().least_cap == 0.0


async def test_what_finds_no_room_is_given_up_with_its_reason():
    world = World(qps=2, ttft_s=2.0, busy=1.0)
    paced, _ = engine(world)
    with pytest.raises(RejectItemError) as refused:
        await paced.generate(prefix(2000), deadline_s=9)
    assert refused.value.reason == Reason.LIVE_TRAFFIC


async def test_our_own_requests_are_not_taken_for_live_traffic():
    world = World()
    paced, pacer = engine(world)
    for number in range(30):
        await paced.generate(prefix(3000, f"s{number}"), deadline_s=9)
        world.pass_(1)
    assert pacer.account().paced_tokens == 0


async def test_a_probe_is_never_split_and_what_was_cached_counts_nothing():
    world = World(qps=2, busy=1.0)
    paced, pacer = engine(world, in_steps=False)
    world.sent.append((-100.0, 4000))  # what was warmed before
    for _ in range(10):
        await paced.generate(prefix(4000), deadline_s=9)
    assert [tokens for _, tokens in world.sent[1:]] == [0] * 10
    assert world.now_s < 20
    assert pacer.account().tokens == 0


async def test_until_the_traffic_is_known_small_steps_are_taken(monkeypatch):
    monkeypatch.setattr("warmup_tasks.warming.pacer._KNOWN_AFTER_S", 5.0)
    world = World()
    paced, _ = engine(world)
    await paced.generate(prefix(5000), deadline_s=9)
    assert sum(tokens for at, tokens in world.sent if at < 5) <= BASE * 5 / WINDOW_S + 100
    assert max(tokens for _, tokens in world.sent) > 1000
