"""Watches who is in the fleet: when members come or go, the agent starts its watches anew, in the same process."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from warmup_tasks.errors import WarmupError
from warmup_tasks.fleet_file import FleetFile

log = logging.getLogger(__name__)

Look = Callable[[], FleetFile]
"""Returns the fleet as it is now; may take its time, and may fail."""


class MemberWatch:
    """Looks again and again whether the fleet is still the one that is watched.

    Args:
        fleet: as watched now.
        look: how the fleet is looked up.
        pause_s: between two looks.
        on_change: called once, with the other fleet; the watch ends then.
    """

    def __init__(self, fleet: FleetFile, look: Look, pause_s: float, on_change: Callable[[FleetFile], None]) -> None:
        self._fleet, self._look, self._pause_s, self._on_change = fleet, look, pause_s, on_change

    async def run(self, stop: asyncio.Event) -> None:
        """Watch until ``stop``; a look that fails changes nothing."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._pause_s)
                return
            try:
                found = await asyncio.to_thread(self._look)
            except WarmupError as error:
                log.warning("the fleet could not be looked up, its members stay: %s", error)
                continue
            if found != self._fleet:
                names = [{replica.name for replica in fleet.replicas} for fleet in (self._fleet, found)]
                log.info(
                    "the fleet changed: %s joined, %s left", sorted(names[1] - names[0]), sorted(names[0] - names[1])
                )
                self._on_change(found)
                return
