"""Looking into the serving store: is the value of an item there, and is it of the right identity and tenant?"""

import redis as redis_client

from warmup_tasks.errors import ContractError
from warmup_tasks.identity import embedding_key, qa_key, response_key
from warmup_tasks.items import EvidenceKind, ItemKind, Payload, PlanRow, Residency
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import EmbeddingValue
from warmup_tasks.settings import FleetFile
from warmup_tasks.validation.looks import Finding


def value_key(row: PlanRow, payload: Payload) -> str | None:
    """Return the key under which a row's value lies; None for kinds that live on a replica."""
    match row.kind:
        case ItemKind.EMBEDDING:
            return embedding_key(row.tenant, row.identity_digest, payload.prompt_sha256)
        case ItemKind.RESPONSE:
            return response_key(row.tenant, row.identity_digest, payload.prompt_sha256)
        case ItemKind.QA_PAIR:
            return qa_key(row.tenant, row.identity_digest, payload.intent_hash or "")
        case _:
            return None


def probe_value(row: PlanRow, payload: Payload, fleet: FleetFile, redis: redis_client.Redis) -> Finding:
    """Return whether a store item's value is there and its own; bytes that are no value are a miss.

    Raises:
        RetryLaterError: Redis does not answer.
    """
    key = value_key(row, payload)
    kind = EvidenceKind.STORED_VALUE
    try:
        value = ValueStore(redis).get(key) if key else None
    except ContractError:
        return Finding(Residency.MISS, kind)
    is_own = (
        value is not None
        and value.kind is row.kind
        and value.identity_digest == row.identity_digest
        and value.tenant == row.tenant
        and not (isinstance(value, EmbeddingValue) and value.dimensions != fleet.embedder.dimensions)
    )
    return Finding(Residency.HIT if is_own else Residency.MISS, kind)
