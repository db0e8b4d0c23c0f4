"""Trying again: one engine call, repeated with growing pauses for as long as its deadline lasts.

Only ``RetryLaterError`` is repeated; every other error says that repeating does not help. No call is made here that the
caller did not write.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from warmup_tasks.engines.base import Engine, EngineMetrics, Generation, GenerationRequest
from warmup_tasks.errors import RetryLaterError

ResultT = TypeVar("ResultT")
_log = logging.getLogger(__name__)


async def attempt(
    call: Callable[[float], Awaitable[ResultT]],
    *,
    deadline_s: float,
    tries: int = 4,
    first_pause_s: float = 0.2,
) -> ResultT:
    """Return the result of ``call(seconds left)``, repeated while it raises ``RetryLaterError``.

    Args:
        call: one engine call; it gets the time that is left, in s.
        deadline_s: for all tries together, pauses included.
        tries: at most.
        first_pause_s: before the second try; each further pause is twice as long.

    Raises:
        RetryLaterError: the last try's, when tries or time are used up.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    pause_s = first_pause_s
    for left in range(tries - 1, -1, -1):
        try:
            return await call(max(end - loop.time(), 0.001))
        except RetryLaterError as error:
            if left == 0 or loop.time() + pause_s >= end:
                raise
            _log.info("trying again in %.1f s: %s", pause_s, error)
            await asyncio.sleep(pause_s)
            pause_s *= 2
    raise RetryLaterError("no try was allowed")


async def generate(engine: Engine, request: GenerationRequest, *, deadline_s: float, tries: int = 4) -> Generation:
    """Return a generation, tried again as :func:`attempt` does."""
    return await attempt(lambda left_s: engine.generate(request, deadline_s=left_s), deadline_s=deadline_s, tries=tries)


async def scrape(engine: Engine, *, deadline_s: float) -> EngineMetrics:
    """Return the engine's metrics, tried again as :func:`attempt` does; it doubles as the question "are you there?"."""
    return await attempt(lambda left_s: engine.metrics(deadline_s=left_s), deadline_s=deadline_s)
