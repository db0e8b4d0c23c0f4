"""Names a replica's epoch. Only the agent publishes epochs; this is the rule that it names them by."""

from warmup_tasks.engines.base import EngineMetrics
from warmup_tasks.identity import digest


def epoch_of(metrics: EngineMetrics, generation: int = 0) -> str:
    """Return the epoch id: 16 hex characters over the process start (to 10 ms) and the generation within it.

    Args:
        metrics: a scrape of the replica.
        generation: how often, within one process, the cache content ended (counters fell, cache reset or slept).
    """
    return digest({"process_start_ms": round(metrics.process_start_s * 100) * 10, "generation": generation})[:16]
