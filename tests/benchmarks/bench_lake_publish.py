"""Publishing a million rows to the lake, against DuckDB's own COPY of the same table to zstd Parquet."""

from pathlib import Path
from statistics import median

import duckdb
import numpy as np
import pyarrow as pa

from tests.benchmarks import harness
from warmup_tasks.lake.store import Lake

ROWS = 1_000_000


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Time publish (files, digests, manifest) and COPY, in turns; each publication is a new partition."""
    lake, rows = Lake(str(out / "lake")), max(int(ROWS * scale), 1000)
    table, turn = make_table(rows), iter(range(1000))

    def publish() -> None:
        lake.publish("bench", f"p{next(turn):04d}", {"rows": table})

    def copy() -> None:
        with duckdb.connect() as connection:
            connection.register("rows", table)
            connection.execute(
                f"COPY rows TO '{out / f'copy-{next(turn)}.parquet'}' (FORMAT parquet, COMPRESSION zstd)"
            )

    seconds = harness.in_turns({"publish": publish, "copy": copy})
    publish_s, copy_s = median(seconds["publish"]), median(seconds["copy"])
    headline = {"publish_s": publish_s, "publish_per_copy": publish_s / copy_s, "rows_per_s": rows / publish_s}
    return harness.result("lake_publish", headline, harness.rows_of(seconds, rows=rows, bytes=table.nbytes))


def make_table(rows: int) -> pa.Table:
    """Return rows like those of a request log: ids, times, a few names, numbers."""
    random = np.random.default_rng(7)
    tenants = pa.array([f"tenant-{n}" for n in range(50)])
    return pa.table(
        {
            "request_id": pa.array([f"{value:016x}" for value in random.integers(0, 2**63, rows)]),
            "time": pa.array(np.sort(random.integers(0, 3 * 86_400_000_000, rows)), pa.timestamp("us")),
            "tenant": tenants.take(pa.array(np.minimum(random.zipf(1.5, rows) - 1, 49))),
            "input_tokens": random.integers(10, 8000, rows),
            "ttft_ms": random.gamma(4, 30, rows),
        }
    )
