"""The lake: immutable Parquet files on a URI, named by manifests; the one place where tasks leave data for each other.

Nothing here knows what a request or a plan means beyond its columns.
"""

from warmup_tasks.lake.store import Lake

__all__ = ["Lake"]
