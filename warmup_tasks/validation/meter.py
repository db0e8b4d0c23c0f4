"""Asking an engine so that the first look stays the first: cached tokens by usage, else by counters, else unknown.

A look that failed is not repeated, since its request may have prefilled the prompt before it failed. The meter also
counts what validation itself costs, which is reported beside the cost of warming (spec 6.7).
"""

import asyncio
from dataclasses import dataclass

from warmup_tasks.engines.attempts import scrape
from warmup_tasks.engines.base import Engine, EngineMetrics, Generation, GenerationRequest
from warmup_tasks.engines.counters import cached_tokens_between
from warmup_tasks.items import EvidenceKind

_SCRAPES = 5
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Look:
    """One request's answer and how many of its prompt's tokens were cached; None: nothing told."""

    generation: Generation
    cached_tokens: int | None
    evidence_kind: EvidenceKind


class Meter:
    """Looks at one replica, one request at a time."""

    def __init__(self, engine: Engine, deadline_s: float) -> None:
        self._engine = engine
        self._deadline_s = deadline_s
        self._has_usage_details = False
        self.computed_tokens = 0
        self.least_computed_tokens = 0

    async def look(self, request: GenerationRequest) -> Look:
        """Send one request, once.

        Until a usage first tells cached tokens, the counters are scraped before and after each request; they count only
        where nothing else was under way and they moved by exactly this prompt.

        Raises:
            RejectItemError: the engine refuses.
            RetryLaterError: it does not answer; what it did with the prompt is unknown.
        """
        before = None if self._has_usage_details else await scrape(self._engine, deadline_s=self._deadline_s)
        answer = await self._engine.generate(request, deadline_s=self._deadline_s)
        cached, kind = answer.cached_tokens, EvidenceKind.CACHED_TOKENS
        if cached is not None:
            self._has_usage_details = True
        elif before is not None:
            cached, kind = await self._by_counters(before, _prompt_tokens(answer, request)), EvidenceKind.COUNTER_DELTA
        self.count(_prompt_tokens(answer, request), cached)
        return Look(answer, cached, EvidenceKind.NONE if cached is None else kind)

    def count(self, prompt_tokens: int | None, cached_tokens: int | None) -> None:
        """Add one prompt to the cost; where nothing told what was cached, all of it counts.

        ``least_computed_tokens`` leaves such a prompt out: what others inserted must not hide behind it.
        """
        self.computed_tokens += (prompt_tokens or 0) - (cached_tokens or 0)
        if cached_tokens is not None:
            self.least_computed_tokens += (prompt_tokens or 0) - cached_tokens

    async def _by_counters(self, before: EngineMetrics, prompt_tokens: int | None) -> int | None:
        if prompt_tokens is None:
            return None
        for turn in range(_SCRAPES):
            if turn:
                await asyncio.sleep(_PAUSE_S)  # an engine may add to its counters after it has answered
            after = await scrape(self._engine, deadline_s=self._deadline_s)
            cached = cached_tokens_between(before, after, prompt_tokens)
            if cached is not None:
                return cached
        return None


def _prompt_tokens(answer: Generation, request: GenerationRequest) -> int | None:
    if answer.prompt_tokens is not None:
        return answer.prompt_tokens
    return None if request.body.token_ids is None else len(request.body.token_ids)
