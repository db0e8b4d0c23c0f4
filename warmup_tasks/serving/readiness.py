"""Ready or not, and why: of one item on one replica, and of a replica for a model (spec 0, 6.6).

Here stands the one rule that every reader, probe and router asks: a mark or record holds when it exists, has not ended,
and was proved in the epoch that the replica is in now. An unknown epoch is not ready.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import redis

from warmup_tasks.identity import READINESS_PREFIX, readiness_key
from warmup_tasks.items import Mark, Reason, Record
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.identities import IdentityBook
from warmup_tasks.serving.namespaces import NamespaceIndex, Reach
from warmup_tasks.serving.records import NEWER, decode, instant, life_ms

READINESS_SCHEMA = 1
_PUT = (
    NEWER
    + """
if is_newer(redis.call('GET', KEYS[1]), ARGV[1], ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
return 1
"""
)


class Verdict(NamedTuple):
    """Ready or not, with the reason as a sentence for people."""

    is_ready: bool
    reason: str


class ReadinessRecord(Record):
    """What a run found of one model on one replica: how many of the planned items are ready, in which epoch.

    ``min_share`` of the planned items must be ready for the replica to be.
    """

    schema_version: int = READINESS_SCHEMA
    model: str
    replica: str
    run_id: str
    as_of: datetime
    epoch: str
    identity_digest: str
    planned: int
    ready: int
    share: float
    is_ready: bool
    reason: str = ""
    expires_at: datetime
    min_share: float = 0.5

    def counted(self, ready: int) -> "ReadinessRecord":
        """Return the record with another count of ready items, judged by the same share."""
        share = ready / self.planned if self.planned else 0.0
        is_ready = ready > 0 and share >= self.min_share
        reason = "" if is_ready else f"only {ready} of {self.planned} planned items are ready"
        return self.model_copy(update={"ready": ready, "share": share, "is_ready": is_ready, "reason": reason})


def mark_verdict(mark: Mark | None, now: datetime, published: EpochRecord | None) -> Verdict:
    """Say whether a mark holds.

    Args:
        mark: the mark, or None.
        now: by the wall clock.
        published: the epoch of the mark's replica; not looked at for values of the serving store (replica None).
    """
    if mark is None:
        return Verdict(False, "there is no mark")
    if mark.expires_at <= now:
        return Verdict(False, f"the mark ended at {mark.expires_at.isoformat()}")
    if mark.replica is None:
        return Verdict(True, "the mark holds")
    broken = epoch_verdict(mark.replica, mark.epoch, published)
    return broken or Verdict(True, f"the mark holds in the present epoch of {mark.replica}")


def epoch_verdict(replica: str, proved_in: str | None, published: EpochRecord | None) -> Verdict | None:
    """Return why an epoch does not hold, or None when it is the replica's present one and the replica is healthy."""
    if published is None:
        return Verdict(False, f"{Reason.EPOCH_UNKNOWN}: no agent has spoken of {replica} lately")
    if published.replica != replica or published.epoch != proved_in:
        return Verdict(False, f"{Reason.EPOCH_CHANGED}: {replica} has lost the cache that was warmed")
    if not published.is_healthy:
        return Verdict(False, f"{replica} is not healthy: {published.detail or 'the agent says so'}")
    return None


class NewerPlans(NamedTuple):
    """The models and replicas that a newer plan has warmed: an older one keeps off, since warming evicts."""

    warmed: frozenset[tuple[str, str]]

    def covers(self, model: str, replica: str | None) -> bool:
        """Say whether an item is the newer plan's; what lies in the serving store (None) goes with its model."""
        return (model, replica) in self.warmed or (replica is None and any(model == name for name, _ in self.warmed))


class ReadinessStore:
    """Readiness records by model and replica."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._index = NamespaceIndex(client)
        self._identities = IdentityBook(client)
        self._put = client.register_script(_PUT)

    def put(self, record: ReadinessRecord, now: datetime) -> bool:
        """Write a record until its ``expires_at``; one that has ended removes what stood there.

        Returns:
            False, and nothing changes, where a newer plan has spoken of this epoch of the replica.
        """
        key = readiness_key(record.model, record.replica)
        if record.expires_at <= now:
            self.void(record.model, record.replica)
            return True
        args: list[str | int] = [instant(record.as_of), record.epoch, record.model_dump_json()]
        with store_errors("writing readiness"):
            self._index.enter(READINESS_PREFIX, {key: record.expires_at}, now)
            return bool(self._put(keys=[key], args=[*args, life_ms(record.expires_at, now)]))

    def read(self, model: str, replica: str) -> ReadinessRecord | None:
        """Return the record as it was published, whether it still holds or not."""
        with store_errors("reading readiness"):
            return decode(self._client.get(readiness_key(model, replica)), ReadinessRecord, READINESS_SCHEMA)

    def records(self) -> Iterator[ReadinessRecord]:
        """Yield every record."""
        with store_errors("reading readiness"):
            for keys in self._index.keys(READINESS_PREFIX):
                yield from (
                    record
                    for raw in self._client.mget(keys)
                    if (record := decode(raw, ReadinessRecord, READINESS_SCHEMA))
                )

    def newer(self, as_of: datetime, now: datetime) -> "NewerPlans":
        """Return what plans newer than ``as_of`` left that still holds in the present epochs."""
        found = [record for record in self.records() if record.as_of > as_of and record.expires_at > now]
        epochs = EpochStore(self._client).read_many([record.replica for record in found])
        return NewerPlans(
            frozenset(
                (record.model, record.replica)
                for record, published in zip(found, epochs, strict=True)
                if published is not None and published.epoch == record.epoch
            )
        )

    def void(self, model: str, replica: str) -> int:
        """Delete the record of one model on one replica; return 1 when there was one."""
        with store_errors("voiding readiness"):
            key = readiness_key(model, replica)
            return self._index.remove(READINESS_PREFIX, [key.removeprefix(READINESS_PREFIX)])

    def reached(self, reach: Reach) -> list[ReadinessRecord]:
        """Return the records that speak of what a reach covers as a whole: its model, identity or replica."""
        if reach.is_of_embedder or any((reach.adapter, reach.tenant, reach.item_id)):
            return []
        return [
            record
            for record in self.records()
            if reach.model in (None, record.model)
            and reach.replica in (None, record.replica)
            and reach.identity_digest in (None, record.identity_digest)
            and self._may_have_revision(record, reach.weights_revision)
        ]

    def _may_have_revision(self, record: ReadinessRecord, revision: str | None) -> bool:
        identity = self._identities.recall(record.identity_digest) if revision is not None else None
        return identity is None or identity.weights_revision.value in (None, revision)


def is_ready(
    client: redis.Redis, model: str, replica: str, *, now: datetime | None = None, identity_digest: str | None = None
) -> Verdict:
    """Say whether a replica is ready for a model, and why.

    Args:
        client: of the store.
        model: served name of the base model.
        replica: name in the fleet.
        now: the wall clock's time; None reads the clock.
        identity_digest: what must be served; None accepts the identity that the run proved.

    Raises:
        RetryLaterError: Redis is away; that is not ready either.
    """
    record = ReadinessStore(client).read(model, replica)
    if record is None:
        return Verdict(False, f"no run has published readiness of {model} on {replica}")
    if record.expires_at <= (now or datetime.now(UTC)):
        return Verdict(False, f"the readiness ended at {record.expires_at.isoformat()}")
    if identity_digest is not None and record.identity_digest != identity_digest:
        return Verdict(False, f"{replica} was warmed for another serving identity of {model}")
    broken = epoch_verdict(replica, record.epoch, EpochStore(client).read(replica))
    if broken:
        return broken
    counts = f"{record.ready} of {record.planned} planned items are ready"
    return Verdict(record.is_ready, counts if record.is_ready else record.reason or f"only {counts}")
