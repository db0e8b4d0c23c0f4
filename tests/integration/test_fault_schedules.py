"""Randomised schedules of faults on the double: whatever happens, no mark that a reader believes is wrong.

``WARMUP_FAULT_SCHEDULES=1000`` runs so many seeds, ``WARMUP_FAULT_SEED=17`` begins at one; a failure names its seed.
The suite over the evidence is left out: it can only keep marks from being written, and the schedules want them all.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.fault_schedules import DOUBLE, FaultSchedule
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.validation import judgement
from warmup_tasks.validation.suite import SuiteResult

IN_CI = 12
FIRST = int(os.environ.get("WARMUP_FAULT_SEED", "100"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("WARMUP_FAULT_SCHEDULES", str(IN_CI))))


@pytest.fixture(scope="module")
def doubles() -> Iterator[dict[str, DoubleProcess | str]]:
    with start_double(**DOUBLE) as first, start_double(**DOUBLE) as second:
        yield {"a": first, "b": second}


@pytest.fixture(autouse=True)
def _every_verdict_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "check_evidence", lambda *_: SuiteResult(True, [], 0))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_mark_is_wrong(
    seed: int, tmp_path: Path, redis_client: redis.Redis, doubles: dict[str, DoubleProcess | str]
) -> None:
    schedule = FaultSchedule(seed, tmp_path, redis_client, doubles)
    wrong = schedule.run()
    assert not wrong, f"seed {seed}: {wrong}, after {schedule.struck} under {schedule.faults}"


def test_without_faults_everything_that_fits_is_ready(
    tmp_path: Path, redis_client: redis.Redis, doubles: dict[str, DoubleProcess | str]
) -> None:
    """The schedules prove nothing where nothing is ever marked."""
    schedule = FaultSchedule(5, tmp_path, redis_client, doubles)
    schedule.faults = {name: {} for name in schedule.faults}
    schedule.events = []
    assert schedule.run() == []
    assert schedule.ready_rows()


def test_a_mark_that_is_wrong_is_seen(
    tmp_path: Path, redis_client: redis.Redis, doubles: dict[str, DoubleProcess | str]
) -> None:
    """New weights in place after publication: nobody has looked again yet, and the truth says so."""
    schedule = FaultSchedule(5, tmp_path, redis_client, doubles)
    schedule.faults = {name: {} for name in schedule.faults}
    schedule.events = []
    schedule.run()
    for name in doubles:
        schedule.night.control(name, "/double/weights", revision="r2")
    assert len(schedule.wrong_marks()) == len(schedule.ready_rows()) > 0
