"""The heat map of spec 2.1: windows of 5 s, 64 buckets, computed by DuckDB.

Here lives the call of the three statements and the constants of the section; the arithmetic is in ``sql/demand``. Which
bucket a request belongs to is the caller's knowledge: a hash of what is shared.
"""

from collections.abc import Sequence
from datetime import datetime
from math import ceil
from typing import NamedTuple

import pyarrow as pa
import xxhash

from warmup_tasks.lake.store import Lake
from warmup_tasks.resources import sql

WINDOW_S = 5
BUCKETS = 64


class HeatMap(NamedTuple):
    """``cells``: window_index, bucket, requests, non-zero only. ``buckets``: requests, heat_fast, heat_slow, intensity.

    ``moments``: requests, entropy_nats, concentration, null where nothing was asked. Window 0 ends at as_of.
    """

    cells: pa.Table
    buckets: pa.Table
    moments: pa.Table


def bucket_of(shared: str) -> int:
    """Return the bucket, 0 to 63, of what requests share: a prefix root or a semantic cluster."""
    return int(xxhash.xxh3_64_intdigest(shared.encode()) % BUCKETS)


def heat_map(
    lake: Lake,
    events: pa.Table | Sequence[str],
    as_of: datetime,
    *,
    lookback_s: float,
    tau_fast_s: float,
    tau_slow_s: float,
) -> HeatMap:
    """Return the heat map at ``as_of``.

    Args:
        lake: runs the SQL.
        events: columns ``time`` (UTC) and ``bucket`` (0 to 63), one row a request, or references of the lake to such
            tables, which need not fit into memory; rows at or after as_of do not count.
        as_of: end of the newest window.
        lookback_s: how far back the map reaches; all its windows count in the intensity, empty ones too.
        tau_fast_s: decay of the fast heat.
        tau_slow_s: decay of the slow heat.
    """
    windows = ceil(lookback_s / WINDOW_S)
    sizes = {"windows": windows, "buckets": BUCKETS}
    bounds = {"as_of": as_of, "window_s": WINDOW_S, "buckets": BUCKETS}
    cells = lake.query(sql("demand/heat_cells"), {"events": events}, bounds)
    taus = {"window_s": WINDOW_S, "tau_fast_s": tau_fast_s, "tau_slow_s": tau_slow_s}
    buckets = lake.query(sql("demand/heat_buckets"), {"cells": cells}, sizes | taus)
    moments = lake.query(sql("demand/heat_moments"), {"cells": cells}, sizes)
    return HeatMap(cells, buckets, moments)
