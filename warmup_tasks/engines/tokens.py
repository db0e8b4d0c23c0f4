"""Tokenises many prompts at one engine: in order, several under way, rejected one by one. Decides nothing."""

import asyncio
from collections.abc import Iterator, Sequence

from warmup_tasks.engines.attempts import attempt
from warmup_tasks.engines.base import Engine
from warmup_tasks.errors import RejectItemError
from warmup_tasks.items import PromptBody

Tokenized = list[int] | RejectItemError


async def tokenize_many(
    engine: Engine, prompts: Sequence[tuple[PromptBody, str]], *, concurrency: int = 16, deadline_s: float
) -> list[Tokenized]:
    """Return the token ids of each prompt, or why the engine refuses it, in the order of ``prompts``.

    Args:
        engine: any replica that serves the models.
        prompts: body and model (or adapter) of each.
        concurrency: calls under way at a time.
        deadline_s: of each prompt, tried again as :func:`attempt` does.

    Raises:
        RetryLaterError: one prompt stayed without an answer; nothing is returned then.
    """
    results: list[Tokenized] = [[] for _ in prompts]
    todo = iter(enumerate(prompts))

    async def work(todo: Iterator[tuple[int, tuple[PromptBody, str]]]) -> None:
        for index, (body, model) in todo:
            results[index] = await _tokenize(engine, body, model, deadline_s)

    workers = [asyncio.create_task(work(todo)) for _ in range(min(concurrency, len(prompts)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return results


async def _tokenize(engine: Engine, body: PromptBody, model: str, deadline_s: float) -> Tokenized:
    try:
        return await attempt(lambda left_s: engine.tokenize(body, model, deadline_s=left_s), deadline_s=deadline_s)
    except RejectItemError as refusal:
        return refusal
