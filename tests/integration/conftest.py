"""Whole nights for the tests of this folder: each command line of ``make run`` is run once and its result shared."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from warmup_tasks.engines.double.process import start_double
from warmup_tasks.items import Reason
from warmup_tasks.lake import Lake
from warmup_tasks.sources.sample_log import DEFAULT_AS_OF, write_sample_log

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 1500


@dataclass(frozen=True)
class Night:
    """What a command left: what it printed, its figures, its folder."""

    printed: str
    summary: dict[str, Any]
    out: Path

    @property
    def lake(self) -> Lake:
        """The night's lake."""
        (lake,) = (self.out / "lake").iterdir()
        return Lake(str(lake))

    @property
    def refused_by_timing(self) -> int:
        """Items whose only fault is that warm was no faster than cold: on a loaded machine that may be noise."""
        slow = [row for row in self.summary["reasons"] if row["reason"] == Reason.SLOWER_THAN_COLD]
        return sum(row["n_items"] for row in slow)


Nights = Callable[[str], Night]


def make(line: str, out: Path) -> Night:
    """Run a ``make run …`` line as a user does, its results in ``out``."""
    command = f"{line} OUT={out}"
    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=REPOSITORY,
        env=_clean(),
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr[-4000:]}{done.stdout[-2000:]}"
    return Night(done.stdout, json.loads((out / "run" / "summary.json").read_text()), out)


def _clean() -> dict[str, str]:
    # A night brings its own site and its own Airflow; what a test session set up for itself must not leak into it.
    return {name: value for name, value in os.environ.items() if not re.match("AIRFLOW|WARMUP_(?!VLLM_VENV)", name)}


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small mixed log folder, and one with its gateway files alone."""
    mixed, gateway = tmp_path_factory.mktemp("mixed"), tmp_path_factory.mktemp("gateway")
    write_sample_log(mixed, seed=3, days=2, scale=0.25, end=DEFAULT_AS_OF)
    for path in mixed.glob("gateway-*"):
        shutil.copy(path, gateway)
    return mixed, gateway


@pytest.fixture(scope="session")
def nights(tmp_path_factory: pytest.TempPathFactory, logs: tuple[Path, Path]) -> Iterator[Nights]:
    """Run a line of the README, its example addresses and paths replaced by real ones; a second call is remembered."""
    done: dict[str, Night] = {}
    with ExitStack() as stack:

        def run(line: str) -> Night:
            if line not in done:
                real = line.replace("/path/to/logs", str(logs["FORMAT=openai" in line]))
                for host in re.findall(r"http://gpu-\d+:\d+", line):
                    double = start_double(model="demo-chat", max_model_len=16_384, num_gpu_blocks=4096)
                    stack.callback(double.stop)
                    real = real.replace(host, double.url)
                done[line] = make(real, tmp_path_factory.mktemp("night"))
            return done[line]

        yield run
