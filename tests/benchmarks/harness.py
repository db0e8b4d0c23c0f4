"""The frame of all benchmarks: what a result is, how things are timed against each other, how results are kept.

A benchmark is one file ``bench_<name>.py`` here with a function ``run(out, scale=1.0) -> BenchResult``; its docstring
says what is compared. Each measures a *ratio to the limit* of this machine, the limit timed in the same run, in turns
with what it limits: absolute speeds of two machines cannot be compared, ratios can.
"""

import gc
import importlib
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from warmup_tasks import __version__
from warmup_tasks.errors import ConfigurationError

FOLDER = Path(__file__).resolve().parent
PREFIX = "bench_"
LIBRARIES = ("duckdb", "numpy", "pyarrow", "pydantic", "redis")


class BenchResult(BaseModel):
    """The JSON under ``out/bench/<name>.json``.

    Attributes:
        name: the benchmark's name.
        headline: what to compare from night to night, name → number; units stand in the names.
        rows: the measurements behind it, one object each.
        command: how to repeat it.
        version: package, libraries, Python and machine that it was measured with.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    headline: dict[str, float] = Field(min_length=1)
    rows: list[dict[str, JsonValue]] = Field(min_length=1)
    command: str
    version: dict[str, str]


class Benchmark(Protocol):
    """A module ``bench_<name>``."""

    def run(self, out: Path, scale: float = 1.0) -> BenchResult:
        """Measure; ``scale`` shrinks the input for tests; ``out`` is a folder for temporary files."""


def names() -> list[str]:
    """Return the names of all benchmarks, sorted."""
    return sorted(path.stem.removeprefix(PREFIX) for path in FOLDER.glob(f"{PREFIX}*.py"))


def data_file(name: str) -> Path:
    """Return a file of the public logs: under ``WARMUP_TEST_DATA``, or ``shared/data`` beside the repository.

    Raises:
        ConfigurationError: it is not there.
    """
    beside = FOLDER.parents[2] / "shared" / "data"
    path = Path(os.environ.get("WARMUP_TEST_DATA") or beside) / name
    if not path.is_file():
        raise ConfigurationError(f"no public data at {path}: set WARMUP_TEST_DATA to a folder that holds it")
    return path


def chosen(only: str) -> list[str]:
    """Return the benchmarks named in ``only``, separated by commas; empty means all.

    Raises:
        ConfigurationError: a name is unknown; the message lists the known ones.
    """
    asked = [name.strip() for name in only.split(",") if name.strip()]
    unknown = sorted(set(asked) - set(names()))
    if unknown:
        raise ConfigurationError(f"no benchmark {', '.join(unknown)}; known: {', '.join(names())}")
    return asked or names()


def load(name: str) -> Any:
    """Return the module of a benchmark."""
    return importlib.import_module(f"tests.benchmarks.{PREFIX}{name}")


def result(name: str, headline: Mapping[str, float], rows: Sequence[Mapping[str, Any]]) -> BenchResult:
    """Return a result with command and version filled in."""
    return BenchResult(
        name=name,
        headline=dict(headline),
        rows=[dict(row) for row in rows],
        command=f"make bench ONLY={name}",
        version={
            "warmup_tasks": __version__,
            **{library: version(library) for library in LIBRARIES},
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        },
    )


def in_turns(
    contenders: Mapping[str, Callable[[], object]], repeats: int = 5, prepare: Callable[[], object] | None = None
) -> dict[str, list[float]]:
    """Return seconds of each contender, run in turns after one round that does not count.

    ``prepare`` is called before each, outside its time. Turns keep a slow minute of the machine from falling on one
    contender alone; the order changes from round to round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1, repeats):
        ordered = list(contenders.items())
        for name, contender in ordered if turn % 2 else reversed(ordered):
            gc.collect()
            if prepare is not None:
                prepare()
            begun = time.perf_counter()
            contender()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def rows_of(seconds: Mapping[str, Sequence[float]], **facts: Any) -> list[dict[str, Any]]:
    """Return one row a contender: median, best and number of turns, with the given facts."""
    return [
        {"contender": name, "median_s": median(found), "best_s": min(found), "turns": len(found), **facts}
        for name, found in seconds.items()
    ]


def keep(found: BenchResult, folder: Path) -> Path:
    """Write a result under ``folder`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found.name}.json"
    path.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return path
