"""Small, valid records for the tests of the serving store; each test names what it varies."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from warmup_tasks.identity import EmbedderIdentity, IdentityField, ServingIdentity, digest
from warmup_tasks.items import EvidenceKind, GainBasis, ItemKind, Mark, Residency, item_id
from warmup_tasks.serving.values import EmbeddingValue, ResponseValue


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def identity() -> ServingIdentity:
    return ServingIdentity(model="m", weights_revision=IdentityField(declared="r1"))


@pytest.fixture
def embedder() -> EmbedderIdentity:
    return EmbedderIdentity(embedder="e", revision="1", dimensions=4)


@pytest.fixture
def make_mark(now: datetime, identity: ServingIdentity) -> Callable[..., Mark]:
    def make(**changes) -> Mark:
        return Mark(
            **{
                "item_id": "a" * 32,
                "kind": ItemKind.KV_PREFIX,
                "tenant": None,
                "replica": "r0",
                "model": "m",
                "adapter": None,
                "identity_digest": identity.digest(),
                "epoch": "e1",
                "run_id": "run",
                "as_of": now,
                "marked_at": now,
                "expires_at": now + timedelta(hours=1),
                "residency": Residency.HIT,
                "evidence_kind": EvidenceKind.CACHED_TOKENS,
                "gain_basis": GainBasis.MEASURED,
                **changes,
            }
        )

    return make


@pytest.fixture
def make_response(now: datetime, identity: ServingIdentity) -> Callable[..., ResponseValue]:
    def make(prompt: str = "p", text: str = "the answer", tenant: str | None = None, **changes) -> ResponseValue:
        sha = digest({"prompt": prompt})
        where = changes.pop("identity", identity)
        return ResponseValue(
            item_id=item_id(ItemKind.RESPONSE, tenant, None, where.digest(), sha),
            tenant=tenant,
            identity_digest=where.digest(),
            created_at=now,
            model=where.model,
            adapter=where.adapter,
            prompt_sha256=sha,
            text=text,
            **changes,
        )

    return make


@pytest.fixture
def make_embedding(now: datetime, embedder: EmbedderIdentity) -> Callable[..., EmbeddingValue]:
    def make(prompt: str = "p", vector=None, tenant: str | None = None, by: EmbedderIdentity = embedder):
        sha = digest({"prompt": prompt})
        return EmbeddingValue.of(
            vector if vector is not None else [0.5] * by.dimensions,
            by,
            item_id=item_id(ItemKind.EMBEDDING, tenant, None, by.digest(), sha),
            tenant=tenant,
            prompt_sha256=sha,
            created_at=now,
        )

    return make


@pytest.fixture
def mark_of(make_mark) -> Callable[..., Mark]:
    """The mark that vouches for a stored value."""

    def make(value, **changes) -> Mark:
        return make_mark(
            **{
                "item_id": value.item_id,
                "kind": value.kind,
                "tenant": value.tenant,
                "replica": None,
                "epoch": None,
                "adapter": getattr(value, "adapter", None),
                "identity_digest": value.identity_digest,
                "value_key": value.key,
                **changes,
            }
        )

    return make
