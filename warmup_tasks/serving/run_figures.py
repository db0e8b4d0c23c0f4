"""The newest run's figures in Redis, for whoever watches: tasks end with their run, monitoring wants to ask later.

Numbers and names only. The run of the newest plan stands; a backfilled day never replaces a later one. How the figures
are made lies in ``reporting/``, how they are shown in ``agent/``.
"""

from datetime import datetime, timedelta

import redis

from warmup_tasks.identity import run_figures_key
from warmup_tasks.items import Record
from warmup_tasks.serving.connection import store_errors
from warmup_tasks.serving.records import decode

RUN_FIGURES_SCHEMA = 1
KEPT_FOR = timedelta(days=7)


class RunFigures(Record):
    """What a run came to, as its report says; None: not measured, or the run stopped before.

    ``ttft_*_ms`` are medians over the same sampled prompts, cold and warm; ``hit_ratio_*`` whole blocks found cached
    over whole blocks asked for.
    """

    schema_version: int = RUN_FIGURES_SCHEMA
    run_id: str
    as_of: datetime
    reported_at: datetime
    is_published: bool | None
    planned: int | None
    ready: int | None
    failure_share: float | None
    hit_ratio_cold: float | None
    hit_ratio_warm: float | None
    ttft_cold_ms: float | None
    ttft_warm_ms: float | None
    prefill_warming_tokens: int | None
    prefill_validation_tokens: int | None


class RunFiguresStore:
    """The newest run's figures. Every call raises ``RetryLaterError`` while Redis is away."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def put(self, figures: RunFigures) -> bool:
        """Keep a run's figures for a week; False when a later plan's stand there."""
        known = self.read()
        if known is not None and known.as_of > figures.as_of:
            return False
        with store_errors("keeping a run's figures"):
            self._client.set(run_figures_key(), figures.model_dump_json(), ex=KEPT_FOR)
        return True

    def read(self) -> RunFigures | None:
        """Return the newest run's figures, or None."""
        with store_errors("reading a run's figures"):
            return decode(self._client.get(run_figures_key()), RunFigures, RUN_FIGURES_SCHEMA)
