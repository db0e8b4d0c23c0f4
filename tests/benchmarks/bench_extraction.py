"""Extraction of JSON lines into the lake, against DuckDB reading the same columns of the same file into zstd Parquet.

``parse_ratio`` is DuckDB's time over ours for the same work and more: types, line numbers, a reason for each bad line.
``full_ratio`` is DuckDB's time over that of a whole extraction: prompt digests, each request once, days, the account.
DuckDB gets the columns' names and types, ignores bad lines, and does not say which they were. Both are the worse of the
two forms that most logs have. ``memory_growth_10x`` is the peak of all processes together, for ten times the log.
Set ``WARMUP_BENCH_FULL=1`` for the memory at 1 and 10 GB; by default it is measured at 0.3 and 3 GB.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks import harness
from tests.support import request_logs
from warmup_tasks.lake import Lake
from warmup_tasks.lake.schemas import REQUESTS
from warmup_tasks.sources import extract, logbook, reading, registry
from warmup_tasks.sources.log_reading import FileTask, LogReading
from warmup_tasks.sources.options import ReadOptions
from warmup_tasks.sources.reader import Job
from warmup_tasks.sources.runs import REPEATED, ArrowRun
from warmup_tasks.sources.tabling import Tabling

BYTES = 10**9
MEMORY_BYTES = 3 * 10**8
TIMES = 10
PARTS_A_GROUP = 64  # 16 MB
REPEATS, SMALL = 3, 0.01
WORKERS = len(os.sched_getaffinity(0))


class Baseline(NamedTuple):
    """What DuckDB selects, and the types that it is told."""

    columns: str
    types: str


BASELINES = {
    "normalised": Baseline(
        """request_id, time, tenant, model, session_id, messages, input_tokens, output_tokens, cached_tokens, ttft_ms,
        latency_ms, status, answer_text""",
        """{record: 'varchar', time: 'varchar', request_id: 'varchar', tenant: 'varchar', model: 'varchar',
        session_id: 'varchar', messages: 'json', input_tokens: 'bigint', output_tokens: 'bigint',
        cached_tokens: 'bigint', ttft_ms: 'double', latency_ms: 'double', status: 'integer', answer_text: 'varchar'}""",
    ),
    "openai": Baseline(
        """request_id, timestamp, tenant_id, request.model, session_id, request.messages, response.usage.prompt_tokens,
        response.usage.completion_tokens, response.usage.prompt_tokens_details.cached_tokens, ttft_ms, latency_ms,
        status, response.choices[1].message.content as answer_text""",
        """{timestamp: 'double', request_id: 'varchar', tenant_id: 'varchar', session_id: 'varchar',
        request: 'struct(model varchar, messages json)', response: 'struct(
            choices struct(message struct(content varchar))[],
            usage struct(prompt_tokens bigint, completion_tokens bigint,
                         prompt_tokens_details struct(cached_tokens bigint)))',
        latency_ms: 'double', ttft_ms: 'double', status: 'integer'}""",
    ),
}


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Time DuckDB, parsing and extraction in turns, for each form; then each format alone, and the memory."""
    size = max(int(BYTES * scale), 2 * 10**6)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, list[float]] = {"parse_ratio": [], "full_ratio": []}
    for form in BASELINES:
        log = out / f"{form}.jsonl"
        records = request_logs.write(log, form, size)
        contenders: dict[str, Callable[[], object]] = {
            "duckdb": lambda log=log, form=form: read_by_duckdb(log, form, out),
            "parse": lambda log=log: parse(log, out),
            "full": lambda log=log: extract_whole(log, out),
        }
        seconds = harness.in_turns(contenders, REPEATS if scale > SMALL else 1)
        best = {name: median(found) for name, found in seconds.items()}
        facts = {"form": form, "bytes": log.stat().st_size, "records": records, "workers": WORKERS}
        for row in harness.rows_of(seconds, **facts):
            row |= {"bytes_per_s": facts["bytes"] / row["median_s"], "records_per_s": records / row["median_s"]}
            rows.append(row)
        ratios["parse_ratio"].append(best["duckdb"] / best["parse"])
        ratios["full_ratio"].append(best["duckdb"] / best["full"])
        log.unlink()
    rows += [one_format(out, name, max(size // 10, 10**6)) for name in request_logs.FORMS]
    memory = memory_rows(out, scale)
    growth = memory[1]["peak_bytes"] / memory[0]["peak_bytes"]
    speed = min(row["bytes_per_s"] for row in rows if row["contender"] == "full")
    headline = {
        **{name: min(found) for name, found in ratios.items()},
        "memory_growth_10x": growth,
        "full_bytes_per_s": speed,
    }
    return harness.result("extraction", headline, [*rows, *memory])


def read_by_duckdb(log: Path, form: str, out: Path) -> None:
    """Read what ours reads: the same columns, typed, into zstd Parquet."""
    columns, types = BASELINES[form]
    source = f"read_json('{log}', format = 'newline_delimited', ignore_errors = true, columns = {types})"
    with duckdb.connect() as connection:
        connection.execute(f"set threads = {WORKERS}")
        connection.execute(f"copy (select {columns} from {source}) to '{out}/duckdb.parquet' (compression zstd)")


def parse(log: Path, out: Path) -> None:
    """Read the log into typed rows with line numbers and reasons, and those into zstd Parquet; nothing is merged."""
    (file,) = reading.discover(str(log))
    task = FileTask(file, *logbook.plan([file], [], ""))
    task.choose(registry.AUTO, ReadOptions())
    with tempfile.TemporaryDirectory(dir=out) as folder:
        staged = LogReading([task], Job(Path(folder), Tabling(is_digested=False)), None).run(WORKERS)
        runs = [run for of_day in staged.requests.values() for run in of_day]

        def to_parquet(run: Any) -> None:
            rows = ArrowRun(run, REQUESTS)
            parts = range(len(run.starts) - 1)
            options: dict[str, Any] = {"compression": "zstd", "use_dictionary": list(REPEATED)}
            with pq.ParquetWriter(f"{run.path}.parquet", REQUESTS, **options) as writer:
                for first in parts[::PARTS_A_GROUP]:
                    writer.write_table(pa.concat_tables(map(rows.part, parts[first : first + PARTS_A_GROUP])))

        with ThreadPoolExecutor(WORKERS) as threads:
            list(threads.map(to_parquet, runs))


def extract_whole(log: Path, out: Path) -> None:
    """Extract the log into a new lake."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        extract(Lake(folder), str(log))


def one_format(out: Path, name: str, size: int) -> dict[str, Any]:
    """Return how fast one format is extracted, start included, by one worker."""
    log = out / f"one-{name}"
    records = request_logs.write(log, name, size)
    seconds = harness.in_turns({name: lambda: _extract_one(log, out)}, 1)[name]
    facts = {"bytes": log.stat().st_size, "records": records, "workers": 1}
    log.unlink()
    return {
        "contender": "extract", "format": name, "median_s": median(seconds), **facts,
        "bytes_per_s": facts["bytes"] / median(seconds), "records_per_s": records / median(seconds),
    }  # fmt: skip


def _extract_one(log: Path, out: Path) -> None:
    with tempfile.TemporaryDirectory(dir=out) as folder:
        extract(Lake(folder), str(log), workers=1)


def memory_rows(out: Path, scale: float) -> list[dict[str, Any]]:
    """Return the peak memory of an extraction, and that of one of a log ten times as long."""
    base = BYTES if os.environ.get("WARMUP_BENCH_FULL") else MEMORY_BYTES
    rows = []
    for times in (1, TIMES):
        size = max(int(base * scale), 10**6) * times
        log = out / "memory.jsonl"
        records = request_logs.write(log, "normalised", size)
        peak = peak_bytes(log, out)
        rows.append(
            {
                "contender": "memory",
                "bytes": size,
                "records": records,
                "peak_bytes": peak,
                "is_full_size": base == BYTES,
            }
        )
        log.unlink()
    return rows


def peak_bytes(log: Path, out: Path) -> int:
    """Return the most memory that an extraction and its processes had resident at one time, together."""
    arguments = f"Lake({str(out / 'lake')!r}), {str(log)!r}, workers={WORKERS}"
    program = f"from warmup_tasks.lake import Lake\nfrom warmup_tasks.sources import extract\nextract({arguments})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    peak = 0
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        is_over = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not is_over.wait(0.02):
                peak = max(peak, sum(map(resident_bytes, tree(process.pid))))

        watcher = threading.Thread(target=watch)
        watcher.start()
        status = process.wait()
        is_over.set()
        watcher.join()
    shutil.rmtree(out / "lake")
    if status:
        raise RuntimeError(f"extraction ended with status {status}")
    return peak


def tree(pid: int) -> list[int]:
    """Return a process and its children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(inner for child in children for inner in tree(int(child)))]


def resident_bytes(pid: int) -> int:
    """Return what a process has in memory; nothing when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
