"""What a gateway asks: the warm value or a miss, ready or not, and which salt to send (spec 1.2, 1.4).

A reader gives a value only while its mark holds, and only to the tenant and identity that it was made for. It never
raises because Redis is away: a cache that cannot be asked is a miss. Nothing here writes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Generic, TypeVar

import redis

from warmup_tasks.errors import ConfigurationError, ContractError, WarmupError
from warmup_tasks.identity import (
    EmbedderIdentity,
    ServingIdentity,
    adapter_key,
    derived_salt,
    embedding_key,
    qa_key,
    response_key,
)
from warmup_tasks.items import Mark
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.readiness import Verdict, mark_verdict
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import AdapterValue, EmbeddingValue, QaValue, ResponseValue, StoredValue

ValueT = TypeVar("ValueT", bound=StoredValue)


class MissReason(StrEnum):
    """Why there is nothing to hand out."""

    NO_VALUE = "no value is stored"
    BAD_VALUE = "what is stored is no value of this version"
    OTHER_OWNER = "the stored value belongs to another tenant or identity"
    NOT_READY = "the value is stored, its mark does not hold"
    STORE_AWAY = "the serving store does not answer"


@dataclass(frozen=True, slots=True)
class Hit(Generic[ValueT]):
    """A value and the mark that vouches for it."""

    value: ValueT
    mark: Mark


@dataclass(frozen=True, slots=True)
class Miss:
    """No value; ``detail`` says more, never a prompt."""

    reason: MissReason
    detail: str = ""


def _wall_clock() -> datetime:
    return datetime.now(UTC)


class ReaderClient:
    """Reads the serving store for one or many tenants.

    Args:
        client: from :func:`warmup_tasks.serving.connect`.
        clock: gives the present time with zone.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], datetime] = _wall_clock) -> None:
        self._values = ValueStore(client)
        self._marks = MarkStore(client)
        self._epochs = EpochStore(client)
        self._clock = clock

    def embedding(
        self, tenant: str | None, embedder: EmbedderIdentity, prompt_sha256: str
    ) -> Hit[EmbeddingValue] | Miss:
        """Return a prompt's embedding by exactly this embedder, revision and lexicon."""
        key = embedding_key(tenant, embedder, prompt_sha256)
        found = self._read(key, tenant, embedder.digest(), EmbeddingValue)
        if isinstance(found, Hit) and found.value.dimensions != embedder.dimensions:
            return Miss(MissReason.BAD_VALUE, "the stored vector has other dimensions")
        return found

    def response(self, tenant: str | None, identity: ServingIdentity, prompt_sha256: str) -> Hit[ResponseValue] | Miss:
        """Return the default response to exactly this prompt (``identity.prompt_digest``)."""
        return self._read(response_key(tenant, identity, prompt_sha256), tenant, identity.digest(), ResponseValue)

    def qa(self, tenant: str | None, identity: ServingIdentity, intent_hash: str) -> Hit[QaValue] | Miss:
        """Return the frequent QA pair of an intent."""
        return self._read(qa_key(tenant, identity, intent_hash), tenant, identity.digest(), QaValue)

    def adapter(self, identity: ServingIdentity, replica: str) -> Hit[AdapterValue] | Miss:
        """Return the registry entry of the identity's adapter when it is warm on that replica."""
        return self._read(adapter_key(identity), None, identity.digest(), AdapterValue, replica)

    def is_item_ready(
        self, tenant: str | None, identity_digest: str, item_id: str, replica: str | None = None
    ) -> Verdict:
        """Say whether an item is warm on a replica now (``replica`` None: in the serving store), and why."""
        try:
            return self._judge(MarkAddress(tenant, identity_digest, item_id, replica))[1]
        except WarmupError as error:
            return Verdict(False, f"{MissReason.STORE_AWAY}: {error}")

    @staticmethod
    def salt_for(tenant: str, identity: ServingIdentity) -> str:
        """Return the cache salt that a tenant with salt mode ``derived`` sends at this identity.

        Raises:
            ConfigurationError: the tenant is empty.
        """
        return derived_salt(tenant, identity.digest())

    def _read(
        self, key: str, tenant: str | None, identity_digest: str, wanted: type[ValueT], replica: str | None = None
    ) -> Hit[ValueT] | Miss:
        try:
            value = self._values.get(key)
            if value is None:
                return Miss(MissReason.NO_VALUE)
            if not isinstance(value, wanted):
                return Miss(MissReason.BAD_VALUE, f"a {value.kind} is stored in its place")
            if (value.key, value.tenant, value.identity_digest) != (key, tenant, identity_digest):
                return Miss(MissReason.OTHER_OWNER)
            mark, verdict = self._judge(MarkAddress(tenant, identity_digest, value.item_id, replica))
        except ContractError as error:
            return Miss(MissReason.BAD_VALUE, str(error))
        except ConfigurationError:
            raise
        except WarmupError as error:
            return Miss(MissReason.STORE_AWAY, str(error))
        if mark is None or not verdict.is_ready:
            return Miss(MissReason.NOT_READY, verdict.reason)
        if mark.value_key not in (None, key):
            return Miss(MissReason.NOT_READY, "the mark vouches for another value")
        return Hit(value, mark)

    def _judge(self, address: MarkAddress) -> tuple[Mark | None, Verdict]:
        mark = self._marks.get(address)
        if mark is not None and MarkAddress.of(mark) != address:
            return None, Verdict(False, "the stored mark belongs to another tenant, identity, item or replica")
        published = self._epochs.read(address.replica) if mark is not None and address.replica else None
        return mark, mark_verdict(mark, self._clock(), published)
