"""The demo log: a seeded, made-up service with everything in its logs that real ones have.

Nothing here reads logs, and nothing outside imports its parts: one call writes the files.
"""

from warmup_tasks.sources.sample_log.tenants import ADAPTERS, MODEL
from warmup_tasks.sources.sample_log.writer import DEFAULT_AS_OF, SampleLogSummary, write_sample_log

__all__ = ["ADAPTERS", "DEFAULT_AS_OF", "MODEL", "SampleLogSummary", "write_sample_log"]
