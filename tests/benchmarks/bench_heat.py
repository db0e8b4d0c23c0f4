"""The heat map of up to 10^8 requests in the lake, against a plain DuckDB scan of the same two columns.

DuckDB makes the requests itself, three days of them in order of time, a daily wave, buckets by a power law, and streams
them into the lake; heat, intensity and dispersion (spec 2.1) are computed from there, as a night does. Memory is that
of a fresh process: its peak, libraries included. Nothing is held but the cells, at most 64 a window.
"""

from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import harness
from warmup_tasks.demand.heat import BUCKETS, heat_map
from warmup_tasks.lake.store import Lake

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
LOOKBACK_S = 3 * 86_400
REQUESTS = 100_000_000
SIZES = (1_000_000, 10_000_000)
REPEATS = 3
SCAN = "SELECT count(*) AS n, max(time) AS newest, sum(bucket) AS buckets FROM events"
MAKE = """
SELECT
    CAST($as_of AS TIMESTAMPTZ) - INTERVAL 3 DAY
        + to_microseconds(CAST(86400e6 * (x + 0.12 * sin(2 * pi() * x)) AS BIGINT)) AS time,
    CAST(least($buckets, floor(pow(1 - u, -2.5))) - 1 AS INTEGER) AS bucket
FROM (SELECT 3.0 * i / $requests AS x, (hash(i) % 1000003) / 1000004.0 AS u FROM range($requests) AS numbers (i))
"""


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Time the heat map and the scan in turns, on growing logs; the headline is of the largest."""
    lake, largest = Lake(str(out / "lake")), max(int(REQUESTS * scale), 1_000)
    rows: list[dict[str, Any]] = []
    for requests in [*(size for size in SIZES if size < largest), largest]:
        rows += _measure(lake, make_events(lake, requests), requests)
    heat, scan = rows[-2:]
    headline = {
        "ratio_to_plain_scan": heat["median_s"] / scan["median_s"],
        "peak_memory_gb": heat["peak_memory_gb"],
        "requests_per_s": largest / heat["median_s"],
        "heat_s": heat["median_s"],
    }
    return harness.result("heat", headline, rows)


def make_events(lake: Lake, requests: int) -> str:
    """Publish that many requests and return the reference of their table."""
    with lake.connect() as connection:
        made = connection.sql(MAKE, params={"as_of": AS_OF, "buckets": BUCKETS, "requests": requests})
        return lake.publish("events", str(requests), {"events": made.to_arrow_reader(1 << 20)}) + ":events"


def heat(uri: str, events: str) -> None:
    """Compute the heat map of published events."""
    heat_map(Lake(uri), [events], AS_OF, lookback_s=LOOKBACK_S, tau_fast_s=30.0, tau_slow_s=21_600.0)


def scan(uri: str, events: str) -> None:
    """Read both columns once."""
    Lake(uri).query(SCAN, {"events": [events]})


def _measure(lake: Lake, events: str, requests: int) -> list[dict[str, Any]]:
    contenders = {"heat": heat, "scan": scan}
    seconds = harness.in_turns(
        {name: lambda run=contender: run(lake.uri, events) for name, contender in contenders.items()}, REPEATS
    )
    rows = harness.rows_of(seconds, requests=requests, requests_per_s=requests / median(seconds["heat"]))
    for row in rows:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            row["peak_memory_gb"] = fresh.submit(_peak_gb, row["contender"], lake.uri, events).result()
    return rows


def _peak_gb(contender: str, uri: str, events: str) -> float:
    {"heat": heat, "scan": scan}[contender](uri, events)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1e6
