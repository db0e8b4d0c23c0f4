"""Watching how a replica does: its live figures, and the events that call for a warm-up on the spot (spec 1.1, 2.3).

A new epoch is announced once; a crossing of the thresholds is an event unless a task of ours is at work there, whose
own requests the figures cannot be told from. What an event sets off is decided elsewhere.
"""

import logging
from collections.abc import Callable
from datetime import datetime

from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.engines.base import EngineMetrics
from warmup_tasks.engines.figures import LiveFigures
from warmup_tasks.serving.epochs import Observation
from warmup_tasks.serving.events import EventKind, EventStream, LiveEvent
from warmup_tasks.signals import Crossing, Rolling, Signal

log = logging.getLogger(__name__)


class LiveWatch:
    """Turns one replica's scrapes into events.

    Args:
        replica: name in the fleet.
        model: served name of its base model.
        stream: where events go.
        crossing: of this replica, with its thresholds.
        metrics: of the agent.
        is_warming: says whether one of our tasks sends requests to a replica now.
    """

    def __init__(
        self,
        replica: str,
        model: str,
        stream: EventStream,
        crossing: Crossing,
        metrics: AgentMetrics,
        is_warming: Callable[[str], bool],
    ) -> None:
        self._replica, self._model, self._stream = replica, model, stream
        self._crossing, self._metrics, self._is_warming = crossing, metrics, is_warming
        self._figures = LiveFigures()
        self._unsent: list[LiveEvent] = []

    def see(self, scrape: EngineMetrics, epoch: str, moment: datetime, before: Observation | None) -> list[LiveEvent]:
        """Take in one look at the replica and return the events that it gave.

        Args:
            scrape: of the replica.
            epoch: as it is published now.
            moment: of the scrape.
            before: what was seen of the replica at the look before, by whatever agent.

        Raises:
            RetryLaterError: Redis does not answer; nothing is lost, the next look says it again.
        """
        events = self._announced(scrape, epoch, moment, before)
        self._figures.add(scrape, moment.timestamp())
        figures = self._figures.rolling()
        if figures is not None:
            self._metrics.show(self._replica, figures)
            if crossed := self._crossing(figures):
                self._unsent.append(self._surge(figures, crossed, epoch, moment))
        events += self._sent()
        for event in events:
            self._metrics.events.labels(self._replica, event.kind).inc()
            log.info("%s: %s", self._replica, ", ".join((event.kind, *event.signals)))
        return events

    def _announced(
        self, scrape: EngineMetrics, epoch: str, moment: datetime, before: Observation | None
    ) -> list[LiveEvent]:
        if before is None:
            kind = EventKind.JOINED
        else:
            is_same = before.process_start_s == scrape.process_start_s
            kind = EventKind.EMPTIED if is_same else EventKind.RESTARTED
        event = LiveEvent(kind=kind, replica=self._replica, model=self._model, epoch=epoch, time=moment)
        return [event] if self._stream.announce(event) else []

    def _surge(self, figures: Rolling, crossed: tuple[Signal, ...], epoch: str, moment: datetime) -> LiveEvent:
        return LiveEvent(
            kind=EventKind.SURGE,
            replica=self._replica,
            model=self._model,
            epoch=epoch,
            time=moment,
            signals=crossed,
            ttft_p95_ms=figures.ttft_p95_ms,
            threshold_ms=self._crossing.threshold_ms,
            qps=figures.qps,
            qps_before=figures.qps_before,
            miss_ratio=figures.miss_ratio,
            miss_ratio_before=figures.miss_ratio_before,
        )

    def _sent(self) -> list[LiveEvent]:
        """Add what waits for it; what comes while a task of ours is at work is counted and forgotten."""
        sent = []
        while self._unsent:
            event = self._unsent[0]
            if self._is_warming(self._replica):
                self._metrics.suppressed.labels(self._replica, "warming").inc()
            else:
                self._stream.add(event)
                sent.append(event)
            del self._unsent[0]
        return sent
