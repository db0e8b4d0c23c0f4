"""Warming frequent QA pairs: an intent's canonical question with its answer, corrected or generated (spec 1.2)."""

from collections.abc import Sequence
from datetime import datetime

from warmup_tasks.demand.prompts import embedding_text
from warmup_tasks.engines.base import Generation
from warmup_tasks.errors import ContractError
from warmup_tasks.identity import response_key
from warmup_tasks.items import Payload, PlanRow, PromptBody
from warmup_tasks.lake.records import Key
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import QaValue, ResponseValue
from warmup_tasks.warming.answers import warm_answers
from warmup_tasks.warming.work import Attempt, Work


async def warm_qa_pairs(work: Work, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
    """Store every pair; an adopted correction, and an answer that this run has already paid for, need no engine.

    Raises:
        ContractError: a payload names no intent.
        RetryLaterError: Redis does not answer, or others work on a replica for too long.
        GiveUpError: the values do not fit into Redis.
    """

    def known(row: PlanRow, started_at: datetime) -> QaValue | None:
        payload = work.plan.payload(row)
        if payload.intent_hash is None:
            raise ContractError(f"plan of {row.run_id}: QA pair {row.item_id} names no intent")
        text = payload.answer_text or _answered(work, row, payload)
        return None if text is None else _value(row, payload, text, started_at)

    def make(row: PlanRow, answer: Generation, started_at: datetime) -> QaValue:
        return _value(row, work.plan.payload(row), answer.text, started_at)

    return await warm_answers(work, rows, make, known)


def _answered(work: Work, row: PlanRow, payload: Payload) -> str | None:
    """Return the default response that this very run stored for the same prompt: the same answer, already paid for."""
    key = response_key(row.tenant, row.identity_digest, payload.prompt_sha256)
    try:
        value = ValueStore(work.redis).get(key)
    except ContractError:
        return None
    return value.text if isinstance(value, ResponseValue) and value.created_at >= work.began_at else None


def _value(row: PlanRow, payload: Payload, text: str, started_at: datetime) -> QaValue:
    return QaValue(
        item_id=row.item_id,
        tenant=row.tenant,
        identity_digest=row.identity_digest,
        created_at=started_at,
        model=row.model,
        adapter=row.adapter,
        intent_hash=payload.intent_hash or "",
        question=embedding_text(PromptBody.model_validate_json(payload.body_json or "{}")),
        answer=text,
    )
