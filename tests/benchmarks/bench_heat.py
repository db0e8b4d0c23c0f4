"""The heat map of a million requests over three days, against a plain DuckDB scan of the same two columns."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from tests.benchmarks import harness
from warmup_tasks.demand.heat import BUCKETS, heat_map
from warmup_tasks.lake.store import Lake

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
LOOKBACK_S = 3 * 86_400
REQUESTS = 1_000_000
SCAN = "SELECT count(*) AS n, max(time) AS newest, sum(bucket) AS buckets FROM events"


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Time the three statements of the heat map and the scan, in turns."""
    lake, requests = Lake(str(out / "lake")), max(int(REQUESTS * scale), 1000)
    events = make_events(requests)

    def heat() -> None:
        heat_map(lake, events, AS_OF, lookback_s=LOOKBACK_S, tau_fast_s=30.0, tau_slow_s=21_600.0)

    seconds = harness.in_turns({"heat": heat, "scan": lambda: lake.query(SCAN, {"events": events})})
    heat_s, scan_s = median(seconds["heat"]), median(seconds["scan"])
    headline = {"heat_s": heat_s, "heat_per_scan": heat_s / scan_s, "requests_per_s": requests / heat_s}
    return harness.result("heat", headline, harness.rows_of(seconds, requests=requests))


def make_events(requests: int) -> pa.Table:
    """Return ``requests`` events of three days: buckets by a power law, times with a daily wave."""
    random = np.random.default_rng(7)
    day = random.integers(0, 3, requests)
    second = np.clip(random.normal(50_400, 14_400, requests), 0, 86_399)
    start = np.datetime64((AS_OF - timedelta(seconds=LOOKBACK_S)).replace(tzinfo=None), "us")
    times = start + ((day * 86_400 + second) * 1e6).astype("timedelta64[us]")
    buckets = np.minimum(random.zipf(1.4, requests) - 1, BUCKETS - 1).astype(np.int32)
    return pa.table({"time": pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")), "bucket": buckets})
