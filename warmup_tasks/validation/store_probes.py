"""Looking into the serving store: is the value of an item there, and is it of the right identity and tenant?"""

from collections.abc import Sequence

import redis as redis_client

from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.identity import embedding_key, qa_key, response_key
from warmup_tasks.items import EvidenceKind, ItemKind, Payload, PlanRow, Residency
from warmup_tasks.lake.records import Key, Plan, key_of
from warmup_tasks.serving.records import chunks
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import EmbeddingValue, StoredValue
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


def probe_values(
    rows: Sequence[PlanRow], plan: Plan, fleet: FleetFile, redis: redis_client.Redis
) -> dict[Key, Finding]:
    """Return for each store item whether its value is there and its own; bytes that are no value are a miss.

    Raises:
        RetryLaterError: Redis does not answer.
    """
    keys = {key_of(row): value_key(row, plan.payload(row)) for row in rows}
    findings: dict[Key, Finding] = {}
    for members in chunks(rows):
        values = ValueStore(redis).get_many([key for row in members if (key := keys[key_of(row)]) is not None])
        for row in members:
            is_own = _is_own(values.get(keys[key_of(row)] or ""), row, fleet)
            residency = Residency.HIT if is_own else Residency.MISS
            findings[key_of(row)] = Finding(residency, EvidenceKind.STORED_VALUE)
    return findings


def _is_own(value: StoredValue | None, row: PlanRow, fleet: FleetFile) -> bool:
    return (
        value is not None
        and value.kind is row.kind
        and value.identity_digest == row.identity_digest
        and value.tenant == row.tenant
        and not (isinstance(value, EmbeddingValue) and value.dimensions != fleet.embedder.dimensions)
    )
