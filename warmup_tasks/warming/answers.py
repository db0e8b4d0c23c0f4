"""Generating one full answer at temperature 0, on whichever replica can: what responses and QA pairs have in common."""

from collections.abc import Sequence

from warmup_tasks.engines.attempts import generate
from warmup_tasks.engines.base import Generation, GenerationRequest
from warmup_tasks.errors import RejectItemError, RetryLaterError
from warmup_tasks.identity import digest
from warmup_tasks.items import ItemKind, Outcome, PlanRow, PromptBody, Reason
from warmup_tasks.settings import ReplicaSpec
from warmup_tasks.warming.work import Work


async def full_answer(work: Work, row: PlanRow) -> Generation:
    """Return the full model's answer to a row's prompt, from the first replica of its profile that answers.

    Raises:
        RejectItemError: the engine refuses, or no replica of the profile serves the model with its adapter.
        RetryLaterError: none of them answers.
    """
    replicas = _serving(work, row)
    if not replicas:
        raise RejectItemError(
            Reason.DEPENDENCY_FAILED, f"no replica of {row.profile} serves {row.adapter or row.model}"
        )
    body = PromptBody.model_validate_json(work.plan.payload(row).body_json or "{}")
    request = GenerationRequest(
        body, row.adapter or row.model, max_tokens=work.run.policy.response_tokens, cache_salt=row.cache_salt
    )
    last = RetryLaterError("no replica was asked")
    for replica in replicas:
        engine = await work.engine(replica.name)
        try:
            return await generate(engine, request, deadline_s=work.deadline_s, tries=2)
        except RetryLaterError as error:
            last = error
    raise last


def finish_reason(work: Work, answer: Generation) -> str | None:
    """Return ``length`` for an answer that was cut at the limit, ``stop`` for a whole one, None where unknown."""
    if answer.completion_tokens is None:
        return None
    return "length" if answer.completion_tokens >= work.run.policy.response_tokens else "stop"


def computed_tokens(answer: Generation) -> int | None:
    """Return the prompt tokens that the engine computed, or None where it did not say."""
    if answer.prompt_tokens is None or answer.cached_tokens is None:
        return None
    return answer.prompt_tokens - answer.cached_tokens


def _serving(work: Work, row: PlanRow) -> Sequence[ReplicaSpec]:
    """Return the replicas that can answer, beginning at a place that depends on the item: work spreads evenly."""
    wanted = set(work.run.request.replicas)
    serving = [
        replica
        for replica in work.fleet.replicas
        if replica.profile == row.profile and replica.model == row.model and (not wanted or replica.name in wanted)
    ]
    if row.adapter is not None:
        loaded = {
            receipt.replica
            for receipt in work.earlier.values()
            if receipt.kind is ItemKind.ADAPTER and receipt.adapter == row.adapter and receipt.outcome is Outcome.WARMED
        }
        serving = [replica for replica in serving if replica.name in loaded]
    if not serving:
        return []
    start = int(digest(row.item_id)[:8], 16) % len(serving)
    return [*serving[start:], *serving[:start]]
