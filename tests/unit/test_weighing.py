"""What is done about live events, and why not: weighed on a real Redis and a lake, in a given time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from warmup_tasks import reactive
from warmup_tasks.lake import Lake
from warmup_tasks.reactive import COOLDOWN, STALE_AFTER, Outcome
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.events import EventKind, EventStream, LiveEvent
from warmup_tasks.serving.lease import Leases
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore
from warmup_tasks.serving.replica_turns import lease_of
from warmup_tasks.settings import Site
from warmup_tasks.signals import Signal

NOW = datetime.now(UTC)
FLEET = {
    "models": [{"name": "m"}, {"name": "new"}],
    "replicas": [
        {"name": "r0", "url": "http://127.0.0.1:1", "profile": "small", "model": "m"},
        {"name": "r1", "url": "http://127.0.0.1:2", "profile": "small", "model": "m"},
        {"name": "n0", "url": "http://127.0.0.1:3", "profile": "small", "model": "new"},
    ],
    "embedder": {"embedder": "e", "revision": "1", "dimensions": 4},
}


@pytest.fixture
def site(tmp_path: Path, redis_url: str, redis_client: redis.Redis) -> Site:
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    night = NOW - timedelta(hours=6)
    meta = {"lookback_s": 259_200, "step_tokens": {"m": 16}}
    Lake(str(tmp_path / "lake")).publish("demand", f"{night:%Y%m%dT%H%M%SZ}-0123abcd", {}, meta)
    for replica in ("r0", "r1", "n0"):
        EpochStore(redis_client).publish(EpochRecord(replica=replica, epoch="e1", observed_at=NOW), ttl_s=15)
    return Site(
        lake_uri=str(tmp_path / "lake"), redis_url=redis_url, fleet_path=str(tmp_path / "fleet.yaml"), profiles_path="-"
    )


def event(kind: EventKind, replica: str = "r0", *, at: datetime = NOW, epoch: str = "e1", name: str = "1-0") -> Any:
    signals = (Signal.QPS,) if kind is EventKind.SURGE else ()
    told = LiveEvent(kind=kind, replica=replica, model="m", epoch=epoch, time=at, signals=signals)
    return {"id": name, **told.model_dump(mode="json")}


def outcome(site: Site, told: Any, *, run: str = "a", moment: datetime = NOW) -> str:
    (found,) = reactive.weigh(site, [told], run, moment)["outcomes"]
    return str(found)


def test_a_new_life_and_a_surge_fire_each_in_its_own_way(site: Site) -> None:
    both = [event(EventKind.RESTARTED, "r1"), event(EventKind.SURGE, "r0", name="2-0")]
    found = reactive.weigh(site, both, "a", NOW)
    assert found == {"joined": ["r1"], "surged": ["r0"], "outcomes": {"fired": 2}}
    assert reactive.weigh(site, both, "a", NOW) == found, "the same run asks again"


def test_the_same_event_counts_for_one_run(site: Site, redis_client: redis.Redis) -> None:
    assert outcome(site, event(EventKind.JOINED)) == Outcome.FIRED
    assert outcome(site, event(EventKind.JOINED), run="b") == Outcome.DOUBLED
    reaction = EventStream(redis_client).reaction("r0")
    assert reaction is not None
    assert (reaction.run, reaction.event_ids) == ("a", ["1-0"])


def test_a_surge_cools_down_and_grows_old(site: Site) -> None:
    assert outcome(site, event(EventKind.SURGE)) == Outcome.FIRED
    soon = NOW + COOLDOWN / 2
    assert outcome(site, event(EventKind.SURGE, at=soon, name="2-0"), run="b", moment=soon) == Outcome.COOLING
    later = NOW + COOLDOWN
    assert outcome(site, event(EventKind.SURGE, at=later, name="3-0"), run="c", moment=later) == Outcome.FIRED
    assert outcome(site, event(EventKind.SURGE, "r1"), moment=NOW + 2 * STALE_AFTER) == Outcome.STALE


def test_a_new_epoch_is_no_matter_of_cooling_down(site: Site, redis_client: redis.Redis) -> None:
    assert outcome(site, event(EventKind.JOINED)) == Outcome.FIRED
    EpochStore(redis_client).publish(EpochRecord(replica="r0", epoch="e2", observed_at=NOW), ttl_s=15)
    assert outcome(site, event(EventKind.RESTARTED, epoch="e2", name="2-0"), run="b") == Outcome.FIRED
    assert outcome(site, event(EventKind.RESTARTED, epoch="e1", name="3-0"), run="c") == Outcome.EPOCH_PASSED


def test_a_replica_that_cannot_be_seen_just_now_is_still_to_be_warmed(site: Site, redis_client: redis.Redis) -> None:
    EpochStore(redis_client).forget("r0")
    assert outcome(site, event(EventKind.JOINED)) == Outcome.FIRED


def test_what_is_ready_needs_nothing(site: Site, redis_client: redis.Redis) -> None:
    record = ReadinessRecord(
        model="m", replica="r0", run_id="night", as_of=NOW, epoch="e1", identity_digest="d" * 64, planned=1, ready=1,
        share=1.0, is_ready=True, expires_at=NOW + timedelta(hours=1),
    )  # fmt: skip
    ReadinessStore(redis_client).put(record, NOW)
    assert outcome(site, event(EventKind.JOINED)) == Outcome.READY
    assert outcome(site, event(EventKind.SURGE)) == Outcome.FIRED


def test_a_task_at_work_holds_off_surges_alone(site: Site, redis_client: redis.Redis) -> None:
    assert Leases(redis_client).acquire(lease_of("r0"), "a night", 30)
    assert outcome(site, event(EventKind.SURGE)) == Outcome.UNDER_WAY
    assert outcome(site, event(EventKind.JOINED)) == Outcome.FIRED


def test_without_a_night_of_its_model_there_is_nothing_to_warm(site: Site) -> None:
    assert outcome(site, event(EventKind.JOINED, "n0")) == Outcome.NO_DEMAND
    assert outcome(site, event(EventKind.JOINED, "r1"), moment=NOW + timedelta(days=9)) == Outcome.NO_DEMAND
