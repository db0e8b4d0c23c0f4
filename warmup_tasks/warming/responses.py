"""Warming default responses: the full model's answer to an exact prompt, stored without a mark (spec 1.2)."""

from collections.abc import Sequence

from warmup_tasks.errors import RejectItemError, RetryLaterError
from warmup_tasks.items import Outcome, PlanRow, Reason
from warmup_tasks.lake.records import Key
from warmup_tasks.serving.store import ValueStore
from warmup_tasks.serving.values import ResponseValue
from warmup_tasks.warming.answers import computed_tokens, finish_reason, full_answer
from warmup_tasks.warming.work import Attempt, Work, by_adapter, in_order


async def warm_responses(work: Work, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
    """Generate and store every response, ``parameters.concurrency`` under way.

    Raises:
        RetryLaterError: Redis does not answer.
        GiveUpError: the values do not fit into Redis.
    """

    async def one(row: PlanRow) -> Attempt:
        return await _warm(work, row)

    return await in_order(by_adapter(rows), work.run.parameters.concurrency, one)


async def _warm(work: Work, row: PlanRow) -> Attempt:
    started_at = work.now()
    try:
        answer = await full_answer(work, row)
    except RejectItemError as error:
        return work.stopped(Outcome.REJECTED, error.reason, started_at)
    except RetryLaterError:
        return work.stopped(Outcome.FAILED, Reason.ENGINE_UNAVAILABLE, started_at)
    value = ResponseValue(
        item_id=row.item_id,
        tenant=row.tenant,
        identity_digest=row.identity_digest,
        created_at=started_at,
        model=row.model,
        adapter=row.adapter,
        prompt_sha256=work.plan.payload(row).prompt_sha256,
        text=answer.text,
        finish_reason=finish_reason(work, answer),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
    )
    ValueStore(work.redis).put_many([value], work.now(), deadline_s=work.deadline_s)
    return Attempt(
        Outcome.WARMED,
        started_at,
        work.now(),
        prompt_tokens=answer.prompt_tokens,
        computed_tokens=computed_tokens(answer),
        ttft_ms=answer.ttft_ms,
    )
