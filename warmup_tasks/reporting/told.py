"""What of a run's summary is told to whoever watches the site: the few figures that make a trend. Writes nothing."""

from datetime import datetime

from warmup_tasks.reporting.model import RunSummary
from warmup_tasks.serving.run_figures import RunFigures


def run_figures(summary: RunSummary, moment: datetime) -> RunFigures:
    """Return the figures of a summary, reported at ``moment``."""
    return RunFigures(
        run_id=summary.run_id,
        as_of=summary.as_of,
        reported_at=moment,
        is_published=summary.publication.is_published,
        planned=summary.items.planned,
        ready=summary.items.ready,
        failure_share=summary.publication.failure_share,
        hit_ratio_cold=summary.block_hit_ratio.cold,
        hit_ratio_warm=summary.block_hit_ratio.warm,
        ttft_cold_ms=summary.ttft_ms.cold.p50,
        ttft_warm_ms=summary.ttft_ms.warm.p50,
        prefill_warming_tokens=summary.prefill_tokens.warming,
        prefill_validation_tokens=summary.prefill_tokens.validation,
    )
