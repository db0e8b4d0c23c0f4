"""What the agent makes of a replica's metrics, scripted on the double's own metrics page, in fake time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from warmup_tasks.agent.live_watch import LiveWatch
from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.agent.thresholds import Thresholds
from warmup_tasks.engines.base import EngineMetrics
from warmup_tasks.engines.double.metrics import Metrics
from warmup_tasks.engines.figures import minus, quantile_ms
from warmup_tasks.engines.metrics import parse_metrics
from warmup_tasks.serving.epochs import Observation
from warmup_tasks.serving.events import EventKind, EventStream, LiveEvent
from warmup_tasks.signals import Crossing, Signal

BEGAN = datetime(2026, 11, 30, 8, tzinfo=UTC)
TICK_S = 5


class Replica:
    """A replica whose metrics page a script writes; ``minutes`` of traffic pass, looked at every 5 s."""

    def __init__(self, watch: LiveWatch) -> None:
        self.watch, self.moment = watch, BEGAN
        self.before: Observation | None = None
        self.restart()

    def restart(self) -> None:
        cache = {"block_size": "16", "num_gpu_blocks": "1024"}
        self.page = Metrics("m", 4096, cache, 4)
        self.page.process_start_s = self.moment.timestamp()
        self.start_s, self.epoch = self.moment.timestamp(), f"epoch of {self.moment:%H:%M:%S}"

    def scrape(self) -> EngineMetrics:
        seen = parse_metrics(self.page.page().decode())
        return EngineMetrics(**{**{f: getattr(seen, f) for f in seen.__slots__}, "process_start_s": self.start_s})

    def traffic(self, seconds: int, *, qps: float, ttft_s: float = 0.05, missed: float = 0.1) -> Iterator[LiveEvent]:
        """Yield the events of some time of steady traffic, requests of 1,000 tokens."""
        for _ in range(seconds // TICK_S):
            for _ in range(round(qps * TICK_S)):
                self.page.first_token_s.observe(ttft_s)
                self.page.queries.inc(1000)
                self.page.hits.inc(1000 * (1 - missed))
            self.moment += timedelta(seconds=TICK_S)
            yield from self.look()

    def look(self) -> list[LiveEvent]:
        scrape = self.scrape()
        events = self.watch.see(scrape, self.epoch, self.moment, self.before)
        self.before = Observation(
            replica="r0", process_start_s=scrape.process_start_s, prefix_queries_tokens=0, prompt_tokens=0
        )
        return events


@pytest.fixture
def metrics() -> AgentMetrics:
    return AgentMetrics()


@pytest.fixture
def warming() -> set[str]:
    """The replicas on which a task is at work."""
    return set()


@pytest.fixture
def replica(redis_client, metrics, warming) -> Replica:
    crossing = Crossing(500.0, AgentSettings().conditions())
    watch = LiveWatch("r0", "m", EventStream(redis_client), crossing, metrics, lambda name: name in warming)
    found = Replica(watch)
    assert [event.kind for event in found.look()] == [EventKind.JOINED]
    return found


def test_a_new_epoch_is_announced_once_with_what_began_it(replica, redis_client):
    assert replica.look() == []
    replica.moment += timedelta(seconds=20)
    replica.restart()
    assert [event.kind for event in replica.look()] == [EventKind.RESTARTED]
    replica.epoch += ", emptied"
    (emptied,) = replica.look()
    assert (emptied.kind, emptied.epoch, emptied.model) == (EventKind.EMPTIED, replica.epoch, "m")
    assert replica.look() == []
    told = [stored.event.kind for stored in EventStream(redis_client).read("g", "reader")]
    assert told == [EventKind.JOINED, EventKind.RESTARTED, EventKind.EMPTIED]


def test_twice_the_requests_of_the_minutes_before_are_a_surge_once(replica):
    assert list(replica.traffic(400, qps=2)) == []
    (surge,) = replica.traffic(120, qps=6)
    assert (surge.kind, surge.signals) == (EventKind.SURGE, (Signal.QPS,))
    assert surge.qps > 2 * surge.qps_before
    assert surge.qps_before == pytest.approx(2.0, rel=0.35)
    assert list(replica.traffic(600, qps=2)) == []
    assert [event.signals for event in replica.traffic(120, qps=6)] == [(Signal.QPS,)]


def test_a_p95_above_the_threshold_is_a_surge(replica):
    assert list(replica.traffic(400, qps=2, ttft_s=0.3)) == []
    (surge,) = replica.traffic(120, qps=2, ttft_s=0.9)
    assert surge.signals == (Signal.TTFT,)
    assert surge.threshold_ms == 500.0 < surge.ttft_p95_ms <= 1000.0


def test_a_jump_of_the_miss_ratio_is_a_surge(replica):
    assert list(replica.traffic(400, qps=2, missed=0.1)) == []
    (surge,) = replica.traffic(120, qps=2, missed=0.8)
    assert surge.signals == (Signal.MISSES,)
    assert surge.miss_ratio_before == pytest.approx(0.1, abs=0.02)
    assert surge.miss_ratio > 0.3


def test_a_trickle_is_no_surge_whatever_its_ratio(replica):
    assert list(replica.traffic(400, qps=0.2)) == []
    assert list(replica.traffic(120, qps=0.8)) == []


def test_what_our_own_task_does_to_the_figures_sets_nothing_off(replica, warming, metrics):
    assert list(replica.traffic(400, qps=2)) == []
    warming.add("r0")
    assert list(replica.traffic(60, qps=20)) == []
    labels = {"replica": "r0", "reason": "warming"}
    assert metrics.registry.get_sample_value("warmup_live_events_suppressed_total", labels) == 1
    warming.clear()
    assert list(replica.traffic(60, qps=20)) == [], "it has crossed already"


def test_after_a_restart_the_usual_figures_are_still_known(replica):
    assert list(replica.traffic(400, qps=2, missed=0.1)) == []
    replica.restart()
    events = list(replica.traffic(60, qps=2, missed=0.9))
    assert [event.kind for event in events] == [EventKind.RESTARTED, EventKind.SURGE]
    assert events[1].signals == (Signal.MISSES,)


def test_the_agent_s_metrics_show_the_figures(replica, metrics):
    list(replica.traffic(60, qps=3, ttft_s=0.09, missed=0.25))
    value = metrics.registry.get_sample_value
    assert value("warmup_live_qps", {"replica": "r0"}) == pytest.approx(3.0)
    assert value("warmup_live_miss_ratio", {"replica": "r0"}) == pytest.approx(0.25)
    assert 80 < value("warmup_live_ttft_p95_ms", {"replica": "r0"}) <= 100
    assert value("warmup_live_events_total", {"replica": "r0", "kind": "joined"}) == 1


def test_quantiles_lie_within_their_bucket_and_need_a_few_requests():
    histogram = ((0.1, 50.0), (0.5, 100.0), (1.0, 100.0), (float("inf"), 100.0))
    assert quantile_ms(histogram, 0.75) == pytest.approx(300.0)
    assert quantile_ms(minus(histogram, histogram), 0.95) is None
    assert quantile_ms((), 0.95) is None
    assert quantile_ms(((0.1, 0.0), (float("inf"), 9.0)), 0.95) == pytest.approx(100.0)


def test_the_threshold_is_the_default_one_until_a_night_has_tuned_it(tmp_path, monkeypatch):
    from types import SimpleNamespace

    from warmup_tasks.tuning import published

    thresholds = Thresholds(str(tmp_path), AgentSettings())
    crossing = thresholds.crossing("m")
    thresholds.look(BEGAN)
    assert crossing.threshold_ms == 500.0
    tuned = SimpleNamespace(trigger_threshold_ms=180.0)
    monkeypatch.setattr(published, "effective_parameters", lambda *_, **__: (tuned, None))
    thresholds.look(BEGAN)
    assert crossing.threshold_ms == 180.0
