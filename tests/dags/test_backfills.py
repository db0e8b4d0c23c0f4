"""Backfills as Airflow makes them: one date succeeded, one failed, one missing, under each reprocess behaviour."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.dags.nights import HOME, Night, Steps, carry_out
from warmup_tasks.errors import ContractError
from warmup_tasks.settings import RunRequest

pytestmark = pytest.mark.airflow

DAG_ID = "nightly_warmup"
FIRST = datetime(2026, 3, 1, 2, tzinfo=UTC)
DAYS = [FIRST + timedelta(days=n) for n in range(3)]

Backfill = Callable[..., dict[datetime, str | None]]


@pytest.fixture
def backfill(
    night: Night, steps: Steps, one_profile: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backfill]:
    """Create a backfill with Airflow's own code and carry out its runs in its order; date → the run made, or None."""
    import airflow.settings  # noqa: F401  # first, since it sets up the database
    from airflow.models.backfill import Backfill as BackfillRow
    from airflow.models.backfill import BackfillDagRun, ReprocessBehavior, _create_backfill
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete, select, update

    if not any(HOME.glob("migrated-*")) or not DagVersion.get_version(DAG_ID):
        night({"dry_run": True})  # writes the DAG to the database
    for name, value in one_profile.items():
        monkeypatch.setenv(name, value)

    def create(behaviour: str, days: list[datetime], **options: Any) -> dict[datetime, str | None]:
        steps.calls.clear(), steps.runs.clear(), steps.backfills.clear()
        made = _create_backfill(
            dag_id=DAG_ID,
            from_date=days[0],
            to_date=days[-1],
            max_active_runs=1,
            reverse=options.pop("reverse", False),
            dag_run_conf=options.pop("conf", None),
            triggering_user_name=None,
            reprocess_behavior=ReprocessBehavior(behaviour),
        )
        with create_session() as session:
            rows = session.execute(
                select(BackfillDagRun.logical_date, DagRun.run_id)
                .outerjoin(DagRun, DagRun.id == BackfillDagRun.dag_run_id)
                .where(BackfillDagRun.backfill_id == made.id)
                .order_by(BackfillDagRun.sort_ordinal)
            ).all()
            session.execute(update(BackfillRow).values(completed_at=datetime.now(UTC)))
        for _, run_id in rows:
            if run_id:
                carry_out(run_id)
        return {date: run_id for date, run_id in rows}  # noqa: C416  # rows are no tuples to a type checker

    yield create
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == DAG_ID, DagRun.logical_date.in_(DAYS)))
        session.execute(delete(BackfillRow))


@pytest.fixture
def history(backfill: Backfill, steps: Steps) -> None:
    """The first date succeeded, the second failed, the third has no run; none of them warms, to be quick."""
    steps.held = "the time that it plans for has passed"
    steps.errors = {("plan",): [ContractError("no replica fits")]}
    backfill("none", DAYS[1:2])
    backfill("none", DAYS[:1])


def planned_for(steps: Steps) -> list[datetime]:
    return list(dict.fromkeys(run.as_of for run in steps.runs))


@pytest.mark.parametrize(
    ("behaviour", "runs_of"),
    [("none", [2]), ("failed", [1, 2]), ("completed", [0, 1, 2])],
)
@pytest.mark.usefixtures("history")
def test_each_behaviour_runs_the_dates_that_it_names(
    backfill: Backfill, steps: Steps, behaviour: str, runs_of: list[int]
) -> None:
    made = backfill(behaviour, DAYS)
    assert [n for n, day in enumerate(DAYS) if made[day]] == runs_of
    assert planned_for(steps) == [DAYS[n] + timedelta(days=1) for n in runs_of]
    assert set(steps.backfills) == {True}


@pytest.mark.usefixtures("history")
def test_newest_first_and_with_a_conf_of_its_own(backfill: Backfill, steps: Steps) -> None:
    backfill("failed", DAYS, reverse=True, conf={"models": ["m"]})
    assert planned_for(steps) == [DAYS[2] + timedelta(days=1), DAYS[1] + timedelta(days=1)]
    assert {tuple(run.request.models) for run in steps.runs} == {("m",)}


def test_a_day_goes_all_the_way_unless_it_is_held_back(backfill: Backfill, steps: Steps) -> None:
    backfill("none", DAYS[:1])
    assert steps.runs[0].request == RunRequest(as_of=DAYS[1])
    assert {"twins", "warm", "probe", "publish_profile", "publish", "report"} <= set(steps.names())
    steps.held = "a newer plan has warmed every replica that it plans for"
    backfill("completed", DAYS[:1])
    assert set(steps.names()) == {"extract", "profile", "tune", "plan", "report"}
