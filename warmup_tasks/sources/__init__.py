"""Request logs: how each format is recognised and read, and how its requests reach the lake, each once.

A new log format is one file here with one :class:`~warmup_tasks.sources.base.Source` and its line in ``registry.py``.
Nothing here looks at what the requests ask for.
"""

from warmup_tasks.sources.account import ExtractionSummary
from warmup_tasks.sources.extract import extract

__all__ = ["ExtractionSummary", "extract"]
