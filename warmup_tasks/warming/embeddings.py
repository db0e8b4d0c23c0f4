"""Warming prompt embeddings: text to vector by the fleet's embedder, vector to the serving store, without a mark."""

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from warmup_tasks.demand.embedder import EMBEDDER, HashingEmbedder, Vectors
from warmup_tasks.demand.prompts import embedding_text
from warmup_tasks.engines.attempts import attempt
from warmup_tasks.errors import ConfigurationError, RejectItemError
from warmup_tasks.items import Outcome, PlanRow, PromptBody, Reason
from warmup_tasks.lake.records import Key
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import EmbeddingValue
from warmup_tasks.warming.work import Attempt, Work

_BATCH = 64
Embed = Callable[[list[str]], Awaitable[Vectors]]


async def warm_embeddings(work: Work, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
    """Embed and store every row, in batches; a vector of the wrong dimension is rejected and not written.

    Raises:
        ConfigurationError: nothing offers the embedder that the fleet file names.
        RetryLaterError: the embedder's replica or Redis does not answer.
        GiveUpError: the values do not fit into Redis.
    """
    if not rows:
        return {}
    embed = await _embedder(work)
    attempts: dict[Key, Attempt] = {}
    for start in range(0, len(rows), _BATCH):
        attempts |= await _batch(work, rows[start : start + _BATCH], embed)
    return attempts


async def _batch(work: Work, rows: Sequence[PlanRow], embed: Embed) -> dict[Key, Attempt]:
    started_at = work.now()
    texts = [embedding_text(_body(work, row)) for row in rows]
    try:
        vectors = await embed(texts)
    except RejectItemError as error:
        if len(rows) > 1:  # one text that is too long must not cost the others their vectors
            return {key: done for row in rows for key, done in (await _batch(work, [row], embed)).items()}
        return {_key(row): work.stopped(Outcome.REJECTED, error.reason, started_at) for row in rows}
    values: list[EmbeddingValue] = []
    attempts: dict[Key, Attempt] = {}
    for row, vector in zip(rows, vectors, strict=True):
        try:
            values.append(
                EmbeddingValue.of(
                    vector,
                    work.fleet.embedder,
                    item_id=row.item_id,
                    tenant=row.tenant,
                    prompt_sha256=work.plan.payload(row).prompt_sha256,
                    created_at=started_at,
                )
            )
        except RejectItemError as error:
            attempts[_key(row)] = work.stopped(Outcome.REJECTED, error.reason, started_at)
    ValueStore(work.redis).put_many(values, work.now(), deadline_s=work.deadline_s)
    done = Attempt(Outcome.WARMED, started_at, work.now(), computed_tokens=0)
    return {_key(row): attempts.get(_key(row), done) for row in rows}


async def _embedder(work: Work) -> Embed:
    """Return the embedder that the fleet names: its endpoint, the built-in one, or a replica of that model."""
    identity = work.fleet.embedder
    if identity.embedder == EMBEDDER and work.fleet.embedder_endpoint is None:
        built_in = HashingEmbedder(identity)

        async def embed_here(texts: list[str]) -> Vectors:
            return built_in.embed(texts)

        return embed_here
    serving = work.fleet.embedder_replica()
    if serving is None:
        raise ConfigurationError(
            f"embedder {identity.embedder!r}: no replica serves a model of that name; give its address as "
            f"embedder_endpoint, or name {EMBEDDER!r}"
        )
    engine = await work.engine_at(serving)

    async def embed_there(texts: list[str]) -> Vectors:
        vectors = await attempt(
            lambda left_s: engine.embed(texts, identity.embedder, deadline_s=left_s), deadline_s=work.deadline_s
        )
        if len({len(vector) for vector in vectors}) > 1:
            raise RejectItemError(Reason.DIMENSION_MISMATCH, f"{serving.name} sent vectors of several lengths")
        return np.asarray(vectors, dtype=np.float32)

    return embed_there


def _body(work: Work, row: PlanRow) -> PromptBody:
    return PromptBody.model_validate_json(work.plan.payload(row).body_json or "{}")


def _key(row: PlanRow) -> Key:
    return row.item_id, row.replica
