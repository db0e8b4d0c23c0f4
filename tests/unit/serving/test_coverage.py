"""Coverage k of n: how many replicas behind one address are ready, and why the others are not."""

from datetime import UTC, datetime, timedelta

import redis

from warmup_tasks.serving.coverage import coverage
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore

NOW = datetime.now(UTC)
MODEL = "m"


def proved(client: redis.Redis, replica: str, epoch: str, published: str | None) -> None:
    record = ReadinessRecord(
        model=MODEL, replica=replica, run_id="run", as_of=NOW, epoch=epoch, identity_digest="a" * 64,
        planned=2, ready=2, share=1.0, is_ready=True, expires_at=NOW + timedelta(hours=1),
    )  # fmt: skip
    ReadinessStore(client).put(record, NOW)
    if published is not None:
        EpochStore(client).publish(EpochRecord(replica=replica, epoch=published, observed_at=NOW))


def test_each_replica_counts_by_its_own_epoch(redis_client: redis.Redis) -> None:
    proved(redis_client, "a", "1", "1")
    proved(redis_client, "b", "1", "2")
    proved(redis_client, "c", "1", None)
    found = coverage(redis_client, MODEL, ["a", "b", "c", "d"])
    assert (found.ready, found.replicas, str(found)) == (1, 4, "1 of 4 replicas ready")
    assert set(found.missing) == {"b", "c", "d"}
    assert "lost the cache" in found.missing["b"]
    assert "no agent" in found.missing["c"]
