"""Prefix-run LRU replay of a log in a file, against libCacheSim's LRU on its own binary file of the same accesses.

Ours reads 64-bit names, numbers them and replays; libCacheSim's ``process_trace`` counts every block that it finds, so
before anything is timed both count that way and must agree. It is timed as it comes, and with the hash table size that
suits it best. From 10^5 to 10^8 accesses; the largest are timed once each. Rows say how long each step of ours takes.
Needs ``libcachesim`` (a development dependency).
"""

import gzip
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import orjson

from tests.benchmarks import harness
from tests.benchmarks.block_trace import block_trace
from warmup_tasks.errors import WarmupError
from warmup_tasks.replay.accesses import Accesses, dense_ids
from warmup_tasks.replay.lru import hit_curve, replay_lru

SMALLEST, LARGEST = 100_000, 100_000_000
TIMED_ONCE_FROM = 50_000_000
WRITTEN_TOGETHER = 5_000_000
CAPACITY_SHARE = 0.1
HASH_POWERS = (16, 20, 24)
AS_IT_COMES = 24
RECORD = np.dtype([("time", "<u4"), ("name", "<u8"), ("size", "<u4"), ("next", "<i8")])


class Trace(NamedTuple):
    """One trace in both forms; the capacity is a tenth of its distinct blocks."""

    name: str
    names: Path
    lengths: Path
    binary: Path
    accesses: int
    capacity: int


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Time both on traces of growing size, and on the public conversation trace where it is there."""
    largest = max(int(LARGEST * scale), 1_000)
    sizes = [10**power for power in range(5, 10) if SMALLEST <= 10**power < largest] + [largest]
    rows: list[dict[str, Any]] = []
    real = _conversations()
    if real is not None:
        rows += _measure(_write(out, "conversation_trace", *real))
    for size in sizes:
        rows += _measure(_write(out, f"synthetic_{size}", *block_trace(size)), has_memory=size == largest)
    ours, theirs, best = (_row(rows, who, largest) for who in ("ours", "libcachesim", "libcachesim_tuned"))
    small = _row(rows, "ours", sizes[0])
    headline = {
        "ratio_to_libcachesim": theirs["median_s"] / ours["median_s"],
        "ratio_to_libcachesim_tuned": best["median_s"] / ours["median_s"],
        "accesses_per_s": largest / ours["median_s"],
        "bytes_per_access": ours["peak_mb"] * 1e6 / largest,
        "memory_to_libcachesim": ours["peak_mb"] / max(theirs["peak_mb"], 0.1),
        "time_per_access_growth": (ours["median_s"] / largest) / (small["median_s"] / sizes[0]),
    }
    for size in sizes[:-1]:
        ratio = _row(rows, "libcachesim", size)["median_s"] / _row(rows, "ours", size)["median_s"]
        headline[f"ratio_to_libcachesim_{size}"] = ratio
    return harness.result("replay_speed", headline, rows)


def _row(rows: list[dict[str, Any]], contender: str, accesses: int) -> dict[str, Any]:
    return next(row for row in rows if row["contender"] == contender and row["accesses"] == accesses)


def _write(out: Path, name: str, names: np.ndarray, lengths: np.ndarray) -> Trace:
    paths = [out / f"{name}.{ending}" for ending in ("names", "lengths", "bin")]
    names.tofile(paths[0])
    lengths.tofile(paths[1])
    times = np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
    with paths[2].open("wb") as file:
        for first in range(0, len(names), WRITTEN_TOGETHER):
            some = slice(first, first + WRITTEN_TOGETHER)
            records = np.zeros(len(names[some]), RECORD)
            records["name"], records["size"], records["next"], records["time"] = names[some], 1, -2, times[some]
            records.tofile(file)
    blocks = _accesses(paths[0], paths[1]).blocks
    return Trace(name, *paths, len(names), max(1, int(blocks * CAPACITY_SHARE)))


def _conversations() -> tuple[np.ndarray, np.ndarray] | None:
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("WARMUP_TEST_DATA") or beside) / "mooncake" / "conversation_trace.jsonl.gz"
    if not path.is_file():
        return None
    with gzip.open(path) as lines:
        requests = [orjson.loads(line)["hash_ids"] for line in lines]
    return np.concatenate([np.asarray(request, np.uint64) for request in requests]), np.asarray([*map(len, requests)])


def _measure(trace: Trace, *, has_memory: bool = False) -> list[dict[str, Any]]:
    is_large = trace.accesses >= TIMED_ONCE_FROM
    power = max(HASH_POWERS) + 2 if is_large else _best_power(trace)
    contenders: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(trace),
        "libcachesim": lambda: theirs(trace, AS_IT_COMES),
        "libcachesim_tuned": lambda: theirs(trace, power),
        "ours_every_capacity": lambda: hit_curve(_accesses(trace.names, trace.lengths)),
    }
    counted = replay_lru(_accesses(trace.names, trace.lengths), trace.capacity, counts_runs=False).hit_ratio
    if abs(counted - theirs(trace, power)) > 1e-9:
        raise WarmupError(f"replay_speed: the two do not count the same hits on {trace.name}")
    seconds = {name: [_seconds(one)] for name, one in contenders.items()} if is_large else None
    seconds = seconds or harness.in_turns(contenders, repeats=3)
    facts = {"trace": trace.name, "accesses": trace.accesses, "capacity_blocks": trace.capacity, "hash_power": power}
    rows = harness.rows_of(seconds, hit_ratio_prefix_run=ours(trace), hit_ratio_any_block=counted, **facts)
    for row in rows:
        row["accesses_per_s"] = trace.accesses / median(seconds[row["contender"]])
        row["peak_mb"] = _peak_mb(row["contender"], trace, power) if has_memory else None
        row |= _steps(trace) if row["contender"] == "ours" else {}
    return rows


def _steps(trace: Trace) -> dict[str, float]:
    """Return the nanoseconds an access of each step of ours: at large sizes, memory that has to be waited for."""
    begun = perf_counter()
    names = np.fromfile(trace.names, np.uint64)
    was_read = perf_counter()
    dense_ids(names)
    was_numbered = perf_counter()
    accesses = _accesses(trace.names, trace.lengths)
    before = perf_counter()
    replay_lru(accesses, trace.capacity)
    spent = {"read": was_read - begun, "number": was_numbered - was_read, "replay": perf_counter() - before}
    return {f"{step}_ns": seconds / trace.accesses * 1e9 for step, seconds in spent.items()}


def ours(trace: Trace) -> float:
    """Read, number, replay; return the prefix-run hit ratio."""
    return replay_lru(_accesses(trace.names, trace.lengths), trace.capacity).hit_ratio


def theirs(trace: Trace, power: int) -> float:
    """Replay with libCacheSim; return the share of blocks found."""
    import libcachesim

    reader = libcachesim.TraceReader(str(trace.binary), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    miss_ratio, _ = libcachesim.LRU(trace.capacity, hashpower=power).process_trace(reader)
    return 1 - float(miss_ratio)


def _seconds(contender: Callable[[], Any]) -> float:
    begun = perf_counter()
    contender()
    return perf_counter() - begun


def _best_power(trace: Trace) -> int:
    seconds = {}
    for power in HASH_POWERS:
        seconds[power] = _seconds(lambda power=power: theirs(trace, power))
    return min(seconds, key=lambda power: seconds[power])


def _accesses(names: Path, lengths: Path) -> Accesses:
    blocks, each = np.fromfile(names, np.uint64), np.fromfile(lengths, np.int64)
    return Accesses.of_arrays(blocks, each, np.arange(len(each), dtype=np.float64), block_tokens=16)


def _peak_mb(contender: str, trace: Trace, power: int) -> float:
    """Return what a fresh process needs beyond its libraries, in MB."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(_grown_mb, contender, trace, power).result()


def _grown_mb(contender: str, trace: Trace, power: int) -> float:
    import libcachesim  # noqa: F401

    tiny = Accesses.of([[1, 2], [1]])
    replay_lru(tiny, 1)
    hit_curve(tiny)
    before = _high_water_mb()
    if contender == "ours":
        ours(trace)
    elif contender == "ours_every_capacity":
        hit_curve(_accesses(trace.names, trace.lengths))
    else:
        theirs(trace, AS_IT_COMES if contender == "libcachesim" else power)
    return _high_water_mb() - before


def _high_water_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1000
