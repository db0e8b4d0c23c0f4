"""Warming default responses: the full model's answer to an exact prompt, stored without a mark (spec 1.2)."""

from collections.abc import Sequence
from datetime import datetime

from warmup_tasks.engines.base import Generation
from warmup_tasks.items import PlanRow
from warmup_tasks.lake.records import Key
from warmup_tasks.serving.values import ResponseValue
from warmup_tasks.warming.answers import finish_reason, warm_answers
from warmup_tasks.warming.work import Attempt, Work


async def warm_responses(work: Work, rows: Sequence[PlanRow]) -> dict[Key, Attempt]:
    """Generate and store every response.

    Raises:
        RetryLaterError: Redis does not answer, or others work on a replica for too long.
        GiveUpError: the values do not fit into Redis.
    """

    def make(row: PlanRow, answer: Generation, started_at: datetime) -> ResponseValue:
        return ResponseValue(
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

    return await warm_answers(work, rows, make)
