from datetime import timedelta

import pytest

from warmup_tasks.errors import ConfigurationError, RetryLaterError
from warmup_tasks.identity import epoch_key
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.epochs import EpochRecord, EpochStore, Observation
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore, is_ready


@pytest.fixture
def record(now):
    return ReadinessRecord(
        model="m", replica="r0", run_id="run", as_of=now, epoch="e1", identity_digest="d" * 64,
        planned=10, ready=9, share=0.9, is_ready=True, expires_at=now + timedelta(hours=1),
    )  # fmt: skip


@pytest.fixture
def epochs(redis_client):
    return EpochStore(redis_client)


@pytest.fixture
def publish(epochs, now):
    return lambda epoch="e1", **more: epochs.publish(EpochRecord(replica="r0", epoch=epoch, observed_at=now, **more))


def test_ready_in_the_present_epoch(redis_client, record, publish, now):
    ReadinessStore(redis_client).put(record, now)
    publish()
    assert is_ready(redis_client, "m", "r0", now=now) == (True, "9 of 10 planned items are ready")
    assert redis_client.ttl(epoch_key("r0")) <= 15


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c, e, p: None, "epoch is unknown"),
        (lambda c, e, p: p("e2"), "epoch changed"),
        (lambda c, e, p: p(is_healthy=False, detail="asleep"), "not healthy: asleep"),
        (lambda c, e, p: (p(), e.forget("r0")), "epoch is unknown"),
        (lambda c, e, p: (p(), e.begin_generation("r0")), "epoch is unknown"),
        (lambda c, e, p: (p(), c.set(epoch_key("r0"), b"{}", ex=9)), "epoch is unknown"),
        (lambda c, e, p: (p(), ReadinessStore(c).void("m", "r0")), "no run has published"),
    ],
)
def test_not_ready_and_why(redis_client, epochs, publish, record, now, change, reason):
    ReadinessStore(redis_client).put(record, now)
    change(redis_client, epochs, publish)
    verdict = is_ready(redis_client, "m", "r0", now=now)
    assert not verdict.is_ready
    assert reason in verdict.reason


def test_not_ready_by_its_own_content(redis_client, record, publish, now):
    store = ReadinessStore(redis_client)
    store.put(record.model_copy(update={"is_ready": False, "ready": 2, "share": 0.2}), now)
    publish()
    assert is_ready(redis_client, "m", "r0", now=now) == (False, "only 2 of 10 planned items are ready")
    store.put(record, now)
    assert "another serving identity" in is_ready(redis_client, "m", "r0", now=now, identity_digest="f" * 64).reason
    assert "ended" in is_ready(redis_client, "m", "r0", now=now + timedelta(hours=2)).reason
    assert "no run" in is_ready(redis_client, "other", "r0", now=now).reason
    store.put(record.model_copy(update={"expires_at": now}), now)
    assert store.read("m", "r0") is None


def test_ready_asks_redis_and_says_when_it_is_away(now):
    with pytest.raises(RetryLaterError):
        is_ready(connect("redis://127.0.0.1:1/0", attempts=1, timeout_s=0.5), "m", "r0", now=now)


def test_an_epoch_lives_at_most_15_seconds(epochs, now):
    with pytest.raises(ConfigurationError):
        epochs.publish(EpochRecord(replica="r0", epoch="e", observed_at=now), ttl_s=16)
    assert epochs.read("r0") is None


def test_an_epoch_of_a_past_generation_is_not_published(epochs, now):
    record = EpochRecord(replica="r0", epoch="e", observed_at=now)
    assert epochs.begin_generation("r0") == 1
    assert not epochs.publish(record, generation=0)
    assert epochs.read("r0") is None
    assert epochs.publish(record, generation=1)
    assert epochs.read("r0") == record
    assert epochs.generation("r0") == 1
    assert epochs.generation("r1") == 0


def test_the_last_observation_is_kept(epochs):
    seen = Observation(replica="r0", process_start_s=1.0, prefix_queries_tokens=5, prompt_tokens=7)
    assert epochs.last_seen("r0") is None
    epochs.keep(seen)
    epochs.keep(seen.model_copy(update={"prompt_tokens": 8}))
    assert epochs.last_seen("r0").prompt_tokens == 8
