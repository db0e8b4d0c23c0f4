"""Randomised schedules of faults on the double: whatever happens, no mark that a reader believes is wrong.

``WARMUP_FAULT_SCHEDULES=1000`` runs so many seeds, ``WARMUP_FAULT_SEED=17`` begins at one; a failure names its seed.
The suite over the evidence and the times of these doubles, which take none, are left out: they can only keep marks from
being written, and the schedules want them all.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.fault_schedules import DOUBLE, FaultSchedule, run_side_by_side
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.reader import ReaderClient
from warmup_tasks.validation import judgement, strata
from warmup_tasks.validation.suite import SuiteResult

IN_CI = 12
FIRST = int(os.environ.get("WARMUP_FAULT_SEED", "100"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("WARMUP_FAULT_SCHEDULES", str(IN_CI))))
ONCE_WRONG = (60351,)
"""An adapter was unloaded between its last canary and the base model's."""


@pytest.fixture(scope="module")
def doubles() -> Iterator[dict[str, DoubleProcess | str]]:
    with start_double(**DOUBLE) as first, start_double(**DOUBLE) as second:
        yield {"a": first, "b": second}


@pytest.fixture(autouse=True)
def _every_verdict_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "check_evidence", lambda *_: SuiteResult(True, [], 0))
    monkeypatch.setattr(strata, "gain_of", lambda *_, **__: None)


@pytest.mark.parametrize("seed", [*SEEDS, *ONCE_WRONG])
def test_no_mark_is_wrong(
    seed: int, tmp_path: Path, redis_client: redis.Redis, doubles: dict[str, DoubleProcess | str]
) -> None:
    schedule = FaultSchedule(seed, tmp_path, redis_client, doubles)
    wrong = schedule.run()
    assert not wrong, f"seed {seed}: {wrong}, after {schedule.struck} under {schedule.faults}"


@pytest.mark.parametrize("seed", SEEDS[: max(1, len(SEEDS) // 4)])
def test_two_registries_side_by_side_never_see_each_others_marks(
    seed: int, tmp_path: Path, redis_client: redis.Redis, doubles: dict[str, DoubleProcess | str]
) -> None:
    """Blue and green declare two revisions of one model name and ask for the same prompts; a strike swaps weights."""
    blue = FaultSchedule(seed, tmp_path / "blue", redis_client, {"a": doubles["a"]}, "r1")
    green = FaultSchedule(seed, tmp_path / "green", redis_client, {"b": doubles["b"]}, "r2")
    wrong = run_side_by_side([blue, green])
    struck = [*blue.struck, *green.struck]
    assert not wrong, f"seed {seed}: {wrong}, after {struck} under {blue.faults | green.faults}"
    reader = ReaderClient(redis_client)
    for own, other, replica in ((blue, green, "b"), (green, blue, "a")):
        identities = {row.identity_digest for row in own.night.rows}
        assert identities.isdisjoint(row.identity_digest for row in other.night.rows)
        for row in own.night.rows:
            assert not reader.is_item_ready(row.tenant, row.identity_digest, row.item_id, replica).is_ready
        marked = {
            mark.replica
            for digest in identities
            for mark in MarkStore(redis_client).find(Reach(identity_digest=digest))
        }
        assert replica not in marked


def test_two_registries_without_faults_are_both_ready(
    tmp_path: Path, redis_client: redis.Redis, doubles: dict[str, DoubleProcess | str]
) -> None:
    nights = [
        FaultSchedule(5, tmp_path / name, redis_client, {replica: doubles[replica]}, revision)
        for name, replica, revision in (("blue", "a", "r1"), ("green", "b", "r2"))
    ]
    for night in nights:
        night.faults, night.events = {name: {} for name in night.faults}, []
    assert run_side_by_side(nights) == []
    assert all(night.ready_rows() for night in nights)


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
