"""An engine that is asked at a pace: whatever generates waits for room, long prefixes go in steps (spec 4.3).

It stands between a step and the engine, so twins, warming and probes need not know of it. How fast, ``pacer.py`` says.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from warmup_tasks.engines.base import (
    AdapterListing,
    Capabilities,
    Chunk,
    Engine,
    EngineMetrics,
    EngineReport,
    Generation,
    GenerationRequest,
    KvEvent,
)
from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.items import PromptBody, ReplicaState
from warmup_tasks.lake.schemas import from_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunPolicy
from warmup_tasks.warming.pacer import WINDOW_S, Pacer

log = logging.getLogger(__name__)
_SCRAPE_DEADLINE_S = 10.0
_CHARACTERS_PER_TOKEN = 4  # of a prompt whose tokens nobody has counted yet


class Pace:
    """Opens paced engines for one step and keeps their accounts.

    Args:
        policy: SLO, target, steps.
        prefill_ms_per_token: replica → what the survey measured.
        open_engine: opens a replica.
        in_steps: whether a prefix may go in steps, which is right for warming and wrong for looking: each step warms
            what the next one would have missed.
    """

    def __init__(
        self,
        policy: RunPolicy,
        prefill_ms_per_token: Mapping[str, float],
        open_engine: Callable[[ReplicaSpec], Engine],
        *,
        in_steps: bool = False,
    ) -> None:
        self._policy, self._speeds, self._open = policy, prefill_ms_per_token, open_engine
        self._in_steps = in_steps
        self._pacers: dict[str, Pacer] = {}

    @classmethod
    def of(
        cls, lake: Lake, run: Run, open_engine: Callable[[ReplicaSpec], Engine], *, in_steps: bool = False
    ) -> "Pace":
        """Return the pace of a run whose replicas were surveyed; one that is not paced asks as fast as it can."""
        states = []
        if run.policy.is_paced:
            states = from_table(lake.read(f"replicas/{run.run_id}", "replicas"), ReplicaState)
        speeds = {state.replica: state.prefill_ms_per_token for state in states}
        return cls(run.policy, speeds, open_engine, in_steps=in_steps)

    def open_engine(self, replica: ReplicaSpec) -> Engine:
        """Return the engine of a replica, at the pace that its live traffic allows."""
        engine = self._open(replica)
        if replica.name not in self._speeds:
            return engine  # nobody is spared, or it serves none of the run's models: an embedder

        async def scrape() -> EngineMetrics:
            return await engine.metrics(deadline_s=_SCRAPE_DEADLINE_S)

        base = self._policy.pace_share * WINDOW_S * 1000 / max(self._speeds[replica.name], 1e-3)
        pacer = Pacer(replica.name, base, self._policy, scrape, time.monotonic)
        self._pacers[replica.name] = pacer
        return PacedEngine(engine, pacer, in_steps=self._in_steps)

    def summary(self) -> dict[str, Any]:
        """Return ``pace``: replica → its account, of those that were asked anything; empty where nobody is spared."""
        told = {name: pacer.account() for name, pacer in self._pacers.items()}
        for name, account in told.items():
            if account.violated_s:
                log.warning("%s: warming stood still for %g s, the SLO was violated", name, account.violated_s)
        shown = {name: asdict(account) for name, account in told.items() if account.tokens or account.pauses}
        return {"pace": shown} if shown else {}


class PacedEngine(Engine):
    """Another engine, its generations at a pace; everything else passes through."""

    def __init__(self, engine: Engine, pacer: Pacer, *, in_steps: bool) -> None:
        self._engine, self._pacer, self._in_steps = engine, pacer, in_steps

    async def generate(self, request: GenerationRequest, *, deadline_s: float) -> Generation:
        """Run one generation when there is room.

        The deadline holds for each step, not for waiting.

        Raises:
            RejectItemError: as the engine does, or ``LIVE_TRAFFIC``.
        """
        ids, total, done = request.body.token_ids, _length(request.body), 0
        is_whole = not self._in_steps or ids is None or request.max_tokens > 1 or request.with_logprobs
        while True:
            granted = await self._pacer.grant(total - done, is_whole=is_whole)
            done += granted.tokens
            piece = request if ids is None or done >= total else _head(request, ids[:done])
            answer: Generation | None = None
            try:
                answer = await self._engine.generate(piece, deadline_s=deadline_s)
            finally:
                self._pacer.ended(granted, answer)
            if done >= total:
                return answer

    def stream(self, request: GenerationRequest, *, deadline_s: float) -> AsyncGenerator[Chunk, None]:
        """Stream one generation, without waiting: no step of a run warms by it."""
        return self._engine.stream(request, deadline_s=deadline_s)

    async def capabilities(self, *, deadline_s: float) -> Capabilities:
        """See :class:`Engine`."""
        return await self._engine.capabilities(deadline_s=deadline_s)

    async def report(self, *, deadline_s: float) -> EngineReport:
        """See :class:`Engine`."""
        return await self._engine.report(deadline_s=deadline_s)

    async def tokenize(self, body: PromptBody, model: str, *, deadline_s: float) -> list[int]:
        """See :class:`Engine`."""
        return await self._engine.tokenize(body, model, deadline_s=deadline_s)

    async def embed(self, texts: list[str], model: str, *, deadline_s: float) -> list[list[float]]:
        """See :class:`Engine`."""
        return await self._engine.embed(texts, model, deadline_s=deadline_s)

    async def adapters(self, *, deadline_s: float) -> list[AdapterListing]:
        """See :class:`Engine`."""
        return await self._engine.adapters(deadline_s=deadline_s)

    async def load_adapter(self, name: str, path: str, *, deadline_s: float) -> None:
        """See :class:`Engine`."""
        await self._engine.load_adapter(name, path, deadline_s=deadline_s)

    async def unload_adapter(self, name: str, *, deadline_s: float) -> None:
        """See :class:`Engine`."""
        await self._engine.unload_adapter(name, deadline_s=deadline_s)

    async def metrics(self, *, deadline_s: float) -> EngineMetrics:
        """See :class:`Engine`."""
        return await self._engine.metrics(deadline_s=deadline_s)

    async def reset_prefix_cache(self, *, deadline_s: float) -> bool:
        """See :class:`Engine`."""
        return await self._engine.reset_prefix_cache(deadline_s=deadline_s)

    async def is_paused(self, *, deadline_s: float) -> bool | None:
        """See :class:`Engine`."""
        return await self._engine.is_paused(deadline_s=deadline_s)

    def kv_events(self) -> AsyncGenerator[KvEvent, None] | None:
        """See :class:`Engine`."""
        return self._engine.kv_events()

    async def aclose(self) -> None:
        """See :class:`Engine`."""
        await self._engine.aclose()


def _head(request: GenerationRequest, ids: list[int]) -> GenerationRequest:
    return replace(request, body=PromptBody(token_ids=ids))


def _length(body: PromptBody) -> int:
    if body.token_ids is not None:
        return len(body.token_ids)
    text: Any = body.prompt if body.prompt is not None else body.messages
    return max(1, len(str(text)) // _CHARACTERS_PER_TOKEN)
