"""The newest run and the replicas' readiness as metrics: success rate, hit rate and their trend (spec 1.5).

Batch tasks end before anybody scrapes them, so the agent shows what they left in Redis. What was not measured is NaN,
never 0; so is everything while no run has been reported.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge

from warmup_tasks.serving.readiness import ReadinessRecord
from warmup_tasks.serving.run_figures import RunFigures

_UNKNOWN = float("nan")
_STATES = ("planned", "ready")
_ARMS = ("cold", "warm")
_PURPOSES = ("warming", "validation")


class RunMetrics:
    """Gauges of the newest run, and of the newest readiness records."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self._as_of = gauge("warmup_run_as_of_timestamp_seconds", "What the newest reported run planned for.")
        self._reported = gauge("warmup_run_reported_timestamp_seconds", "When the newest run was reported.")
        self._is_published = gauge("warmup_run_is_published", "1: the newest run published marks.")
        self._items = gauge("warmup_run_items", "Items of the newest run: planned, ready.", "state")
        self._failure_ratio = gauge("warmup_run_failure_ratio", "Of the items that were tried, those that failed.")
        self._hit_ratio = gauge("warmup_run_block_hit_ratio", "Blocks found cached by the replayed requests.", "arm")
        self._ttft_ms = gauge("warmup_run_ttft_p50_ms", "Median time to first token of the same prompts, ms.", "arm")
        self._prefill = gauge(
            "warmup_run_prefill_tokens", "Prompt tokens that the newest run's engines computed.", "purpose"
        )
        self._ready_share = gauge(
            "warmup_ready_ratio", "Of a replica's planned items, those ready.", "model", "replica"
        )

    def show_run(self, run: RunFigures | None) -> None:
        """Show a run's figures; NaN where there is no run."""
        told = {} if run is None else run.model_dump()
        for gauge, name in ((self._as_of, "as_of"), (self._reported, "reported_at")):
            gauge.set(told[name].timestamp() if told else _UNKNOWN)
        for gauge, name in ((self._is_published, "is_published"), (self._failure_ratio, "failure_share")):
            gauge.set(_known(told.get(name)))
        for state in _STATES:
            self._items.labels(state).set(_known(told.get(state)))
        for arm in _ARMS:
            self._hit_ratio.labels(arm).set(_known(told.get(f"hit_ratio_{arm}")))
            self._ttft_ms.labels(arm).set(_known(told.get(f"ttft_{arm}_ms")))
        for purpose in _PURPOSES:
            self._prefill.labels(purpose).set(_known(told.get(f"prefill_{purpose}_tokens")))

    def show_readiness(self, records: Iterable[ReadinessRecord]) -> None:
        """Show what share of a replica's items was ready when that was last counted."""
        self._ready_share.clear()
        for record in records:
            self._ready_share.labels(record.model, record.replica).set(record.share)


def _known(value: float | None) -> float:
    return _UNKNOWN if value is None else float(value)
