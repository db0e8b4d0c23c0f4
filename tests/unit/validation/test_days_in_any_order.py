"""Runs of several days against one replica, in any order: the newest day's plan wins, and nothing of it is evicted."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pytest
import redis

from tests.support.small_night import AS_OF, MODEL, SmallNight, now
from warmup_tasks import gates
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.items import Reason
from warmup_tasks.runs import Run
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.readiness import ReadinessStore
from warmup_tasks.settings import RunRequest, Site

DAYS = [AS_OF + timedelta(days=n) for n in range(3)]


@pytest.fixture(scope="module")
def double() -> Iterator[DoubleProcess]:
    with start_double(
        num_gpu_blocks=64, max_model_len=512, developer_mode=True, latency={"per_token_ms": 0.3}
    ) as process:
        yield process


@pytest.fixture
def night(double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis) -> SmallNight:
    made = SmallNight(tmp_path, redis_client, {"a": double})
    made.control("a", "/double/restart")
    return made


def plan_day(night: SmallNight, day: int) -> None:
    """Plan what every day asks for, and something that only this day does; together they nearly fill the cache."""
    night.run = Run.of(RunRequest(as_of=DAYS[day]), night.run.policy)
    night.rows, night.payloads = [], {}
    night.prefix("a", night.tokens(0, 10), order=0, as_of=DAYS[day])
    night.prefix("a", night.tokens(1 + day, 20), order=1, as_of=DAYS[day])


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_the_newest_day_stands_whole(night: SmallNight, order: tuple[int, ...]) -> None:
    for day in order:
        plan_day(night, day)
        summary = night.whole()
        is_newest = day == max(order[: order.index(day) + 1])
        assert summary["ready"] == (2 if is_newest else 0)
        assert set(summary["reasons"]) == (set() if is_newest else {Reason.SUPERSEDED})
        assert len(night.twin_rows()) == (2 if is_newest else 0)
    marks = {mark.item_id: mark for mark in MarkStore(night.redis).find(Reach(replica="a"))}
    plan_day(night, 2)
    assert {row.item_id for row in night.rows} <= set(marks)
    assert {marks[row.item_id].as_of for row in night.rows} == {DAYS[2]}
    record = ReadinessStore(night.redis).read(MODEL, "a")
    assert record is not None
    assert (record.as_of, record.ready, record.is_ready) == (DAYS[2], 2, True)


def test_an_older_plan_warms_a_replica_that_has_lost_the_newer_one(night: SmallNight) -> None:
    plan_day(night, 1)
    night.whole()
    night.control("a", "/double/restart")
    plan_day(night, 0)
    assert night.whole()["ready"] == 2
    record = ReadinessStore(night.redis).read(MODEL, "a")
    assert record is not None
    assert record.as_of == DAYS[0]


@pytest.fixture
def site(tmp_path: Path, redis_url: str) -> Site:
    return Site(lake_uri=str(tmp_path / "lake"), redis_url=redis_url, fleet_path="", profiles_path="")


def test_what_is_held_back_and_why(night: SmallNight, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_day(night, 0)
    surveyed = pa.table({"model": [MODEL], "replica": ["a"]})
    night.lake.publish("replicas", night.run.run_id, {"replicas": surveyed})
    monkeypatch.setattr(gates, "_now", lambda: datetime(2026, 11, 27, 9, tzinfo=UTC))
    assert gates.held_back(site, night.run) == gates.held_back(site, night.run, is_backfill=True) == ""
    dry = night.run.model_copy(update={"request": night.run.request.model_copy(update={"dry_run": True})})
    assert "dry run" in gates.held_back(site, dry)
    after = night.run.as_of + timedelta(seconds=night.run.policy.horizon_s)
    monkeypatch.setattr(gates, "_now", lambda: after)
    assert gates.held_back(site, night.run) == ""
    assert "has passed: 24 h from 2026-11-27T02:00" in gates.held_back(site, night.run, is_backfill=True)
    monkeypatch.setattr(gates, "_now", now)
    older = night.run
    plan_day(night, 1)
    night.whole()
    assert "a newer plan" in gates.held_back(site, older)
