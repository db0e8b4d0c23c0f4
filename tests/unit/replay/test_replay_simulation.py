"""Simulated time: caches as by definition, waiting, restarts with a warm set, routers, triggers and their account."""

from heapq import heapify, heapreplace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.block_logs import any_logs, naive_hits
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.items import ReplicaState
from warmup_tasks.replay import simulate as simulation
from warmup_tasks.replay.accesses import Accesses
from warmup_tasks.replay.latency import LatencyModel
from warmup_tasks.replay.lru import TouchOrder, replay_lru
from warmup_tasks.replay.simulate import Router, WarmingPace, simulate
from warmup_tasks.replay.triggers import surges
from warmup_tasks.signals import Rolling

LINE = LatencyModel(base_ms=10.0, ms_per_token=1.0, concurrency=1)


@settings(max_examples=100, deadline=None)
@given(any_logs, st.integers(0, 9), st.sampled_from(TouchOrder), st.lists(st.integers(0, 200), max_size=12))
def test_caches_are_those_of_the_definition_also_when_touches_are_dropped(requests, capacity, touch_order, picks):
    log = Accesses.of(requests)
    warm = [pick % log.blocks for pick in picks] if log.blocks else []
    dense = [log.request(index).tolist() for index in range(len(log))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_LEAST_TOUCHES", 4)  # the queue overflows every few touches
        found = simulate(log, capacity, warm=warm, touch_order=touch_order)
    assert found.hits.tolist() == naive_hits(dense, capacity, touch_order, warm=warm)


def test_simulation_and_direct_replay_agree_on_the_real_log(conversations):
    for capacity in (1_000, 30_000):
        found, direct = simulate(conversations, capacity), replay_lru(conversations, capacity)
        assert np.array_equal(found.hits, direct.hits)
        assert found.evicted_blocks == direct.evicted_blocks


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=30), st.integers(1, 3)
)  # fmt: skip
def test_requests_wait_for_the_first_free_slot_in_order_of_arrival(arrivals, slots):
    times = sorted(time / 1000 for time, _ in arrivals)
    tokens = [length for _, length in arrivals]
    log = Accesses.of([[index] for index in range(len(times))], times, block_tokens=60, prompt_tokens=tokens)
    found = simulate(log, 0, latency=LatencyModel(5.0, 1.0, slots))
    free = [0.0] * slots
    heapify(free)
    expected = []
    for time, length in zip(times, tokens, strict=True):
        arrived = (time - times[0]) * 1000
        done = max(arrived, free[0]) + 5.0 + length
        heapreplace(free, done)
        expected.append(done - arrived)
    assert found.ttft_ms.tolist() == pytest.approx(expected)


def test_cached_tokens_cost_nothing_but_the_last_token_is_computed():
    log = Accesses.of([[1, 2], [1, 2], [1, 3]], [0.0, 100.0, 200.0], block_tokens=16, prompt_tokens=[32, 32, 40])
    found = simulate(log, 10, latency=LINE)
    assert found.ttft_ms.tolist() == [42.0, 11.0, 34.0]
    assert found.computed_tokens == 32 + 1 + 24
    assert found.ttft_quantile_ms(0.5) == 34.0
    assert found.load_share == pytest.approx(87 / 200_034)


def test_a_restart_forgets_what_was_and_a_warm_set_brings_it_back():
    log = Accesses.of([[1, 2, 3], [1, 2, 3], [1, 2, 4], [1, 2, 3]], [0.0, 10.0, 20.0, 99.0], block_tokens=16)
    one, two, three = log.request(0).tolist()
    assert simulate(log, 9).hits.tolist() == [0, 3, 2, 3]
    assert simulate(log, 9, restart_at_s=10.0).hits.tolist() == [0, 2, 3]
    warm = simulate(log, 9, warm=[three, two, one], restart_at_s=10.0, window_s=15.0, latency=LINE)
    assert warm.hits.tolist() == [3, 2]
    assert (warm.warm_tokens, warm.warm_ms, warm.hit_ratio) == (48, 48.0, 5 / 6)
    without_root = simulate(log, 9, warm=[two, three], restart_at_s=10.0, window_s=5.0)
    assert without_root.hits.tolist() == [0]


def test_what_is_loaded_last_stays_longest():
    log = Accesses.of([[8], [1], [2]], block_tokens=1)
    first, second = 1, 2
    assert simulate(log, 2, warm=[first, second]).hits.tolist() == [0, 0, 0]
    assert simulate(log, 2, warm=[second, first]).hits.tolist() == [0, 1, 0]


def test_round_robin_is_a_cache_for_every_nth_request(conversations):
    found = simulate(conversations, 5_000, replicas=3)
    for replica in range(3):
        own = [conversations.request(index) for index in range(replica, len(conversations), 3)]
        assert found.hits[replica::3].tolist() == replay_lru(Accesses.of(own), 5_000).hits.tolist()


def test_prefix_affinity_brings_requests_to_what_is_cached(conversations):
    dealt, sent = (simulate(conversations, 5_000, replicas=2, router=router) for router in Router)
    assert sent.hit_ratio > 1.3 * dealt.hit_ratio
    counts = np.bincount(sent.replica, minlength=2)
    assert counts.min() > 0.3 * counts.sum()


def test_where_each_block_is_asked_for():
    log = Accesses.of([[1, 2], [1, 3], [1, 2]])
    found = simulate(log, 9, replicas=2)
    assert log.uses(found.replica, 2).tolist() == [[2, 2, 0], [1, 0, 1]]


def test_prefix_affinity_follows_each_replicas_warm_set_and_flees_a_queue():
    log = Accesses.of([[1, 2], [5, 6], [1, 2], [1, 2]], [0.0, 0.0, 1.0, 1.0], block_tokens=16)
    sets = [log.request(1).tolist(), log.request(0).tolist()]
    found = simulate(log, 9, warm=sets, replicas=2, router=Router.PREFIX_AFFINITY, latency=LINE)
    assert found.replica.tolist() == [1, 0, 1, 1]
    assert found.hits.tolist() == [2, 2, 2, 2]
    slow = LatencyModel(base_ms=1_000.0, ms_per_token=0.001, concurrency=1)
    assert simulate(log, 9, warm=sets, replicas=2, router=Router.PREFIX_AFFINITY, latency=slow).replica.tolist()[3] == 0
    with pytest.raises(ConfigurationError, match="2 warm sets for 3 replicas"):
        simulate(log, 9, warm=sets, replicas=3)


def test_a_triggered_warm_up_takes_time_and_its_account_is_kept():
    """Fires at 1 s: three blocks of 16 tokens in chunks of 16 at 26 ms each; one of the four is resident already."""
    log = Accesses.of(
        [[9], [1, 2], [1, 2, 3], [1, 2, 3], [9]], [0.0, 1.01, 2.0, 301.0, 301.5], block_tokens=16
    )  # fmt: skip
    nine, one, two, three = 0, 1, 2, 3
    asked = []

    def trigger(figures: Rolling) -> list[int] | None:
        asked.append(figures)
        return [nine, one, two, three] if figures.time_s == 1.0 else None

    found = simulate(log, 9, latency=LINE, trigger=trigger, pace=WarmingPace(chunk_tokens=16))
    (firing,) = found.firings
    assert firing.fired_at_s == 1.0
    assert firing.spent_tokens == 3 * 16 - 16  # traffic computed block 2 itself while the warm-up was at block 1
    assert found.hits.tolist() == [0, 1, 3, 3, 1]
    assert firing.saved_tokens == (1 + 2 + 2) * 16  # blocks 1 and 3 within 300 s, until 301.0 included
    assert not firing.is_false
    waited = 1.026 + 0.026  # the chunk under way, then the request of 1.01 s with one cold block
    assert firing.resident_at_s == pytest.approx(waited + 0.026)
    assert found.ttft_ms.tolist() == pytest.approx([26.0, 16.0 + 26.0, 11.0, 11.0, 11.0])
    assert asked[0].qps == 1.0
    assert asked[0].ttft_p95_ms == 26.0
    assert found.ticks == tuple(asked)


def test_a_warm_up_under_way_is_not_started_again():
    """Three blocks of 110 ms each at a tenth of the time: one each 1.1 s, whatever the trigger says meanwhile."""
    log = Accesses.of([[1], [2, 3, 4], [1]], [0.0, 9.0, 500.0], block_tokens=100)
    pace = WarmingPace(chunk_tokens=100, duty_share=0.1)
    found = simulate(log, 9, latency=LINE, pace=pace, trigger=lambda seen: [1, 2, 3] if seen.time_s < 4 else None)
    (firing,) = found.firings
    assert (firing.fired_at_s, firing.latency_s) == (1.0, pytest.approx(2.31))
    assert found.hits.tolist() == [0, 3, 1]
    assert [tick.is_warming for tick in found.ticks[:5]] == [False, True, True, False, False]


def test_a_warm_up_that_saves_less_than_it_spends_is_false():
    log = Accesses.of([[1], [2, 3], [5], [2, 3, 4]], [0.0, 5.0, 6.0, 400.0], block_tokens=100)

    def account(when):
        found = simulate(log, 9, latency=LINE, trigger=lambda seen: [1, 2, 4] if seen.time_s in when else None)
        return [(firing.spent_tokens, firing.saved_tokens, firing.is_false) for firing in found.firings]

    assert account({1.0}) == [(300, 200, True)]
    assert account({5.0}) == [(100, 0, True)]
    assert account({99.0, 100.0}) == [(100, 0, True), (0, 0, False)]
    assert account({390.0}) == [(100, 100, False)]


def test_rolling_figures_count_what_lies_in_their_window():
    times = [0.0, 100.5, 110.0, 129.5]
    log = Accesses.of([[1], [1], [2], [3]], times, block_tokens=10)
    seen = {}
    simulate(log, 9, latency=LINE, trigger=lambda figures: seen.setdefault(figures.time_s, figures) and None)
    at = seen[130.0]
    assert at.qps == 3 / 30
    assert at.miss_ratio == pytest.approx(2 / 3)
    assert (at.qps_before, at.miss_ratio_before) == (1 / 100, 1.0)
    assert at.ttft_p95_ms == pytest.approx(20.0)
    assert seen[20.0].qps_before is None
    assert seen[60.0].ttft_p95_ms is None
    assert seen[60.0].miss_ratio is None


def test_surges_last_thirty_seconds():
    values = [None, 600, 700, None, 650, 100, 900, 900, 400, 800, 800, 800, 800]
    ticks = [Rolling(10.0 * at, 0, value, 0.0, None, None, None, False) for at, value in enumerate(values)]
    assert surges(ticks, 500.0) == [(10.0, 40.0), (90.0, 120.0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity_blocks": -1}, "capacity_blocks"),
        ({"capacity_blocks": 1, "replicas": 0}, "replicas"),
        ({"capacity_blocks": 1, "warm": [3]}, r"\[0, 3\)"),
        ({"capacity_blocks": 1, "warm": [-1]}, r"\[0, 3\)"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        simulate(Accesses.of([[1, 2], [3]]), **arguments)


def test_the_line_is_found_among_requests_that_waited():
    random = np.random.default_rng(5)
    prompt = random.integers(100, 8_000, 400).astype(float)
    cached = np.floor(prompt * random.random(400) / 16) * 16
    ttft = 35.0 + 0.12 * (prompt - cached) + random.normal(0, 2, 400)
    ttft[:160] += random.exponential(2_000, 160)
    ttft[3], cached[4] = np.nan, np.nan
    line = LatencyModel.fitted(prompt, cached, ttft)
    assert line.base_ms == pytest.approx(35, abs=2)
    assert line.ms_per_token == pytest.approx(0.12, rel=0.01)
    assert line.rows == 398
    assert line.prefill_ms(1_000) == pytest.approx(155, abs=3)


def test_too_few_rows_make_no_line():
    with pytest.raises(ConfigurationError, match="19 log rows"):
        LatencyModel.fitted(np.arange(19.0), np.zeros(19), np.ones(19))
    with pytest.raises(ConfigurationError, match="one length"):
        LatencyModel.fitted(np.full(50, 7.0), np.zeros(50), np.ones(50))


def test_the_surveys_line_is_taken_over():
    state = ReplicaState.model_construct(base_ms=12.0, prefill_ms_per_token=0.3)
    assert LatencyModel.of_replica(state, 8) == LatencyModel(12.0, 0.3, 8)


def test_an_empty_log_is_played_in_no_time():
    found = simulate(Accesses.of([]), 5)
    assert (found.hit_ratio, found.load_share, found.ttft_quantile_ms(0.5)) == (0.0, 0.0, None)
