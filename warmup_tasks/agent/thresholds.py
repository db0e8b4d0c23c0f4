"""The thresholds of the P95 that the agent compares with: the default ones, or what a night tuned for the model.

The lake is looked at now and then, in a thread, and its library is only loaded where a lake is named; an agent that
does not reach it goes on with what it has.
"""

import asyncio
import logging
from datetime import UTC, datetime

from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.errors import WarmupError
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.signals import Crossing

log = logging.getLogger(__name__)


class Thresholds:
    """Hands out one crossing a replica and keeps their thresholds as tuned.

    Args:
        lake_uri: None: the default threshold holds.
        settings: of the agent.
    """

    def __init__(self, lake_uri: str | None, settings: AgentSettings) -> None:
        self._lake_uri, self._settings = lake_uri, settings
        self._crossings: dict[str, list[Crossing]] = {}

    def crossing(self, model: str) -> Crossing:
        """Return a crossing for one replica of a model."""
        made = Crossing(GoldenParameters().trigger_threshold_ms, self._settings.conditions())
        self._crossings.setdefault(model, []).append(made)
        return made

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until ``stop`` is set."""
        while not stop.is_set():
            if self._lake_uri:
                await asyncio.to_thread(self.look, datetime.now(UTC))
            try:
                await asyncio.wait_for(stop.wait(), self._settings.thresholds_s)
            except TimeoutError:
                continue

    def look(self, moment: datetime) -> None:
        """Take over what was tuned before a moment; whatever cannot be read changes nothing."""
        from warmup_tasks.lake import Lake
        from warmup_tasks.tuning.published import effective_parameters

        for model, crossings in self._crossings.items():
            try:
                found, _ = effective_parameters(Lake(self._lake_uri or ""), moment, models=[model], for_plan=False)
            except (WarmupError, OSError) as error:
                log.warning("the tuned threshold of %s cannot be read: %s", model, error)
                continue
            for crossing in crossings:
                if crossing.threshold_ms != found.trigger_threshold_ms:
                    log.info("a P95 of %s above %g ms calls for a warm-up", model, found.trigger_threshold_ms)
                    crossing.threshold_ms = found.trigger_threshold_ms
