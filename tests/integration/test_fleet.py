"""A fleet on Celery in one scenario: queues, runs of every kind, kills, and a queue that nobody serves.

One site for all tests, in their order: Redis as the broker, Postgres, two workers on two profile queues, four replicas.
"""

import random
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.support import fleet_runs as runs
from tests.support.live import processes_that_mention
from warmup_tasks.local.live_site import LiveSite

pytestmark = pytest.mark.timeout(900)
SEED = 6
FEW = {"kinds": ["adapter"]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    folder = tmp_path_factory.mktemp("fleet")
    with runs.fleet(folder) as live:
        live.dag_ids()
        yield live
    assert processes_that_mention(str(folder)) == []


@pytest.fixture(scope="module")
def undisturbed(site: LiveSite) -> set[runs.Pair]:
    """The ready set of the scheduled night, which began by itself when the DAG was let run."""
    site.api.set_paused(runs.DAG, is_paused=False)
    night = site.api.wait_until(lambda: site.api.runs(runs.DAG), 60, "tonight's run")[0]
    assert night["run_type"] == "scheduled"
    assert site.api.wait_for_run(runs.DAG, night["dag_run_id"], runs.RUN_S) == "success"
    check_routing(site, night["dag_run_id"])
    return runs.ready_set(site)


def check_routing(site: LiveSite, run_id: str, dag_id: str = runs.DAG) -> None:
    assert runs.wrong_hosts(site, dag_id, run_id) == []
    carried = runs.queues_that_carried(site, dag_id, run_id)
    assert set(carried) == set(runs.QUEUES), "every queue had work"


def test_the_scheduled_night_runs_on_its_queues_and_all_that_was_planned_is_ready(site, undisturbed):
    planned = runs.planned_set(site, runs.newest_run(site))
    assert {replica for _, replica in planned} > set(site.doubles)
    assert undisturbed == planned
    assert runs.leases(site) == []


def test_a_run_by_hand_without_a_date_survives_a_worker_a_scheduler_and_an_agent(site, undisturbed):
    runs.reset(site)
    moments = random.Random(SEED)
    victims = runs.Victims(site, moments)
    run = site.api.trigger(runs.DAG, {**runs.SMALL, "as_of": site.as_of.isoformat()})
    assert site.api.get(f"dags/{runs.DAG}/dagRuns/{run}")["logical_date"] is None
    for stage, victim in (("twins", "worker"), ("warm", "scheduler"), ("probe", "agent")):
        task = runs.wait_for_stage(site, run, stage)
        runs.after_a_while(moments)
        victims.kill(victim, task["hostname"] if task and victim == "worker" else "")
    assert site.api.wait_for_run(runs.DAG, run, runs.RUN_S) == "success"
    check_routing(site, run)
    assert runs.ready_set(site) == undisturbed
    assert runs.leases(site) == []


def test_a_backfill_plans_past_days_and_leaves_newer_marks_alone(site, undisturbed):
    before = runs.ready_set(site)
    day = site.as_of - timedelta(days=2)
    body = {"dag_id": runs.DAG, "from_date": day.isoformat(), "to_date": (day + timedelta(minutes=1)).isoformat()}
    made = site.api.post("backfills", {**body, "reprocess_behavior": "failed", "dag_run_conf": {**runs.SMALL, **FEW}})
    found = site.api.wait_until(lambda: site.api.runs(runs.DAG, run_type="backfill"), 60, "the backfill's runs")
    for run in found:
        assert site.api.wait_for_run(runs.DAG, run["dag_run_id"], runs.RUN_S) == "success"
        assert runs.wrong_hosts(site, runs.DAG, run["dag_run_id"]) == []
    assert made["dag_id"] == runs.DAG
    assert runs.ready_set(site) == before


def test_a_queue_that_nobody_serves_is_named_at_once_and_others_go_on(site, undisturbed):
    site.airflow.parts.pop("worker-small").stop()
    later = site.as_of + timedelta(minutes=1)
    run = site.api.trigger(runs.DAG, {**runs.SMALL, **FEW, "as_of": later.isoformat()})
    assert site.api.wait_for_run(runs.DAG, run, runs.RUN_S) == "failed"
    tasks = {task["task_id"]: task for task in site.api.task_instances(runs.DAG, run)}
    assert (tasks["small.worker"]["state"], tasks["small.worker"]["try_number"]) == ("failed", 1)
    assert tasks["small.twins"]["state"] == "upstream_failed"
    assert tasks["large.probe"]["state"] == tasks["publish"]["state"] == "success"
    assert "no worker serves its queue 'gpu.small'" in runs.log_of(site, run, "small.worker")
