"""A sentinel: one block that lies in a replica's cache only to be missed when the cache is emptied (spec 0, epochs).

vLLM's metrics show neither a reset of the prefix cache nor a pause that emptied it. The sentinel's block is asked for
so often that it is always among the most recently used: it can only be gone when the cache was emptied, or was filled
anew as a whole between two looks, and then no mark is true either. A look costs one request of one block and a token.
"""

from collections.abc import Sequence

from warmup_tasks.engines.base import Engine, EngineMetrics, GenerationRequest
from warmup_tasks.engines.canary import CANARY_TEXT
from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody


class Sentinel:
    """The sentinel of one replica.

    Args:
        engine: the replica.
        model: served name of its base model.
        label: makes the block this watcher's own: two of them on one replica never answer for each other.
    """

    def __init__(self, engine: Engine, model: str, label: str) -> None:
        self._engine, self._model = engine, model
        self._salt = digest({"purpose": "sentinel", "label": label})
        self._tokens: Sequence[int] = ()
        self._planted_in: float | None = None

    async def is_cache_lost(self, metrics: EngineMetrics, *, deadline_s: float) -> bool | None:
        """Look once.

        Args:
            metrics: of the replica, scraped before; another process has another cache, and gets a new sentinel.
            deadline_s: for this look.

        Returns:
            True when the block is gone that was there at the last look, False when it is there. None when nothing can
            be said: the first look in a process, or an engine that does not tell cached tokens.

        Raises:
            RejectItemError: the engine refuses the request.
            RetryLaterError: it does not answer.
        """
        if len(self._tokens) < metrics.block_size + 1:
            text = PromptBody(prompt=CANARY_TEXT * (1 + metrics.block_size // 16))
            self._tokens = (await self._engine.tokenize(text, self._model, deadline_s=deadline_s))[
                : metrics.block_size + 1
            ]
        body = PromptBody(token_ids=list(self._tokens))
        request = GenerationRequest(body, self._model, max_tokens=1, cache_salt=self._salt)
        cached = (await self._engine.generate(request, deadline_s=deadline_s)).cached_tokens
        was_planted, self._planted_in = self._planted_in == metrics.process_start_s, metrics.process_start_s
        if cached is None:
            self._planted_in = None
            return None
        return cached == 0 if was_planted else None
