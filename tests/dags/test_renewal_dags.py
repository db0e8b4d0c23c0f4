"""``feedback_refresh``, ``midday_responses``, ``recheck_marks``: their shape, and real runs with fake steps."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.dags.nights import DAGS, Night, Steps, shards_of_fleet
from warmup_tasks.items import ItemKind
from warmup_tasks.lake import Lake
from warmup_tasks.lake.schemas import REQUESTS
from warmup_tasks.resources import include_path
from warmup_tasks.settings import Site

NAMES = ("feedback_refresh", "midday_responses", "recheck_marks")


@pytest.fixture
def bag(monkeypatch: pytest.MonkeyPatch) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("WARMUP_PROFILES", str(include_path("profiles.yaml")))
    return DagBag(dag_folder=str(DAGS))


def test_they_parse_run_one_at_a_time_and_name_every_step_that_can_be_red(bag: Any) -> None:
    assert bag.import_errors == {}
    quiet = ("go_ahead", "is_due", "warmed", "probed", "shards", "large", "small")
    for name in NAMES:
        dag = bag.dags[name]
        assert (dag.max_active_runs, dag.catchup) == (1, False)
        for task in dag.tasks:
            word = task.task_id.split(".")[-1].removeprefix("large_").removeprefix("small_")
            assert word in quiet or word in dag.doc_md, task.task_id


def test_what_touches_replicas_runs_on_their_profile_s_queue(bag: Any) -> None:
    assert bag.dags["recheck_marks"].get_task("large").queue == "gpu.large"
    assert bag.dags["midday_responses"].get_task("small_recheck").queue == "gpu.small"
    assert bag.dags["midday_responses"].get_task("small_recheck").upstream_task_ids == {"publish"}


def test_without_a_corrected_pair_nothing_is_asked_of_anybody(
    night: Night, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warmup_tasks import renewal

    monkeypatch.setattr(renewal, "void_outdated", lambda site, run: {"due": 0, "voided": 0})
    result = night(dag_id="feedback_refresh")
    assert result.state == "success", result.error
    assert steps.calls == []


def test_a_corrected_pair_is_renewed_by_the_steps_of_a_night(
    night: Night, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warmup_tasks import renewal

    steps.summary["shards"] = shards_of_fleet({"small": 1})
    monkeypatch.setattr(renewal, "void_outdated", lambda site, run: {"due": 1, "voided": 1})
    result = night(dag_id="feedback_refresh")
    assert result.state == "success", result.error
    assert [steps.names()[0], steps.names()[-1]] == ["profile", "publish"]
    (asked,) = {run.run_id: run.request for run in steps.runs}.values()
    assert (asked.kinds, asked.max_answers, asked.demand_of) == ([ItemKind.QA_PAIR], 0, "newest")


def test_the_peak_is_the_busiest_hour_of_the_week_and_is_near_once_a_day(tmp_path: Any) -> None:
    from warmup_tasks.renewal import LOOK_EVERY, is_peak_near

    monday = datetime(2026, 11, 23, tzinfo=UTC)
    site = Site(lake_uri=str(tmp_path), redis_url="redis://127.0.0.1:1/0", fleet_path="-", profiles_path="-")
    assert is_peak_near(site, monday)["peak_hour"] is None
    blank = dict.fromkeys(REQUESTS.names)
    hours = [8] * 5 + [9] * 3 + [20] * 4
    rows = [
        {**blank, "schema_version": 1, "request_id": str(n), "time": monday + timedelta(hours=hour, minutes=n)}
        for n, hour in enumerate(hours)
    ]
    Lake(str(tmp_path)).publish("requests", "2026-11-23", {"requests": pa.Table.from_pylist(rows, schema=REQUESTS)})
    looks = [monday + timedelta(days=1) + number * LOOK_EVERY for number in range(96)]
    found = [is_peak_near(site, look) for look in looks]
    assert {one["peak_hour"] for one in found} == {8}
    assert [look.strftime("%H:%M") for look, one in zip(looks, found, strict=True) if one["is_due"]] == ["07:30"]
