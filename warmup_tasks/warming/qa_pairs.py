"""Warming frequent QA pairs: an intent's canonical question with its answer, corrected or generated (spec 1.2)."""

from collections.abc import Sequence

from warmup_tasks.demand.prompts import embedding_text
from warmup_tasks.errors import ContractError, RejectItemError, RetryLaterError
from warmup_tasks.identity import response_key
from warmup_tasks.items import Outcome, Payload, PlanRow, PromptBody, Reason
from warmup_tasks.lake.records import Key
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import QaValue, ResponseValue
from warmup_tasks.warming.answers import computed_tokens, full_answer
from warmup_tasks.warming.work import Attempt, Work, by_adapter, in_order


async def warm_qa_pairs(work: Work, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
    """Store every pair, ``parameters.concurrency`` under way; an adopted correction needs no engine.

    Raises:
        ContractError: a payload names no intent.
        RetryLaterError: Redis does not answer.
        GiveUpError: the values do not fit into Redis.
    """

    async def one(row: PlanRow) -> Attempt:
        return await _warm(work, row)

    return await in_order(by_adapter(rows), work.run.parameters.concurrency, one)


def _answered(work: Work, row: PlanRow, payload: Payload) -> str | None:
    """Return the default response that this very run stored for the same prompt: the same answer, already paid for."""
    key = response_key(row.tenant, row.identity_digest, payload.prompt_sha256)
    try:
        value = ValueStore(work.redis).get(key)
    except ContractError:
        return None
    return value.text if isinstance(value, ResponseValue) and value.created_at >= work.began_at else None


async def _warm(work: Work, row: PlanRow) -> Attempt:
    started_at, payload = work.now(), work.plan.payload(row)
    if payload.intent_hash is None:
        raise ContractError(f"plan of {row.run_id}: QA pair {row.item_id} names no intent")
    text = payload.answer_text or _answered(work, row, payload)
    prompt_tokens: int | None = 0
    computed: int | None = 0
    ttft_ms: float | None = None
    if text is None:
        try:
            answer = await full_answer(work, row)
        except RejectItemError as error:
            return work.stopped(Outcome.REJECTED, error.reason, started_at)
        except RetryLaterError:
            return work.stopped(Outcome.FAILED, Reason.ENGINE_UNAVAILABLE, started_at)
        text, ttft_ms = answer.text, answer.ttft_ms
        prompt_tokens, computed = answer.prompt_tokens, computed_tokens(answer)
    value = QaValue(
        item_id=row.item_id,
        tenant=row.tenant,
        identity_digest=row.identity_digest,
        created_at=started_at,
        model=row.model,
        adapter=row.adapter,
        intent_hash=payload.intent_hash,
        question=embedding_text(PromptBody.model_validate_json(payload.body_json or "{}")),
        answer=text,
    )
    ValueStore(work.redis).put_many([value], work.now(), deadline_s=work.deadline_s)
    return Attempt(Outcome.WARMED, started_at, work.now(), "", None, prompt_tokens, computed, ttft_ms)
