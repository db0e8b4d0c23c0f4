"""A fleet on Celery in one scenario: queues, runs of every kind, kills, and a queue that nobody serves.

One site for all tests, in their order: Redis as the broker, Postgres, two workers on two profile queues, four replicas.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import fleet_runs as runs
from tests.support.live import processes_that_mention
from warmup_tasks.airflow.context import RELEASE_ASSET
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.local.fleet import write_fleet
from warmup_tasks.local.live_site import LiveSite
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Reach

pytestmark = pytest.mark.timeout(900)
SEED = 6
FEW = {"kinds": ["adapter"]}
REACTIVE, RELEASE, NEW = "reactive_warmup", "model_release", "r2"
WAITING = "awaiting_input"


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


def is_open(site: LiveSite, replica: str) -> bool:
    query = {"model": site.fleet.replica(replica).model, "replica": replica}
    return httpx.get(f"{site.agent_url}/ready", params=query, timeout=10).status_code == httpx.codes.OK


def newest_run_that_published(site: LiveSite, dag_id: str, task_id: str) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        path = f"dags/{dag_id}/dagRuns"
        runs_of_dag = site.api.runs(dag_id)
        states = [site.api.get(f"{path}/{run['dag_run_id']}/taskInstances/{task_id}")["state"] for run in runs_of_dag]
        return [run for run, state in zip(runs_of_dag, states, strict=True) if state == "success"]

    return site.api.wait_until(found, runs.RUN_S, f"a run whose {task_id} succeeded")[-1]


def deploy(site: LiveSite, replica: str) -> None:
    """Bring the new weights: an engine that starts anew with them."""
    for path, body in (("weights", {"revision": NEW}), ("restart", {})):
        httpx.post(f"{site.doubles[replica].url}/double/{path}", json=body, timeout=10).raise_for_status()


def release_of(site: LiveSite) -> FleetFile:
    (model,) = site.fleet.models
    return site.fleet.model_copy(update={"models": [model.model_copy(update={"weights_revision": NEW})]})


def declared_by(fleet: FleetFile) -> set[str]:
    (model,) = fleet.models
    adapters = [None, *(adapter.name for adapter in fleet.adapters)]
    return {fleet.identity(model.name, adapter).digest() for adapter in adapters}


def identities(site: LiveSite, model: str, replica: str) -> set[str]:
    with connect(site.redis.url) as redis:
        return {mark.identity_digest for mark in MarkStore(redis).find(Reach(model=model)) if mark.replica == replica}


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


def test_a_replica_that_comes_back_is_warmed_by_its_event_and_opens_then(site, undisturbed):
    site.api.set_paused(REACTIVE, is_paused=False)
    name = min(site.doubles)
    try:
        site.restart_replica(name)
        site.api.wait_until(lambda: not is_open(site, name), runs.RUN_S, f"the probe of {name} to close")
        site.api.wait_until(lambda: is_open(site, name), runs.RUN_S, f"the probe of {name} to open")
        run = newest_run_that_published(site, REACTIVE, "joined.publish")
        assert site.api.wait_for_run(REACTIVE, run["dag_run_id"], runs.RUN_S) == "success"
    finally:
        site.api.set_paused(REACTIVE, is_paused=True)
    assert run["run_type"] == "asset_triggered"
    assert runs.wrong_hosts(site, REACTIVE, run["dag_run_id"]) == []
    of_replica = {pair for pair in undisturbed if pair[1] == name}
    assert {pair for pair in runs.ready_set(site) if pair[1] == name} == of_replica


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


def test_a_release_told_over_rest_waits_for_a_person_and_then_takes_the_rest(site, undisturbed):
    site.api.set_paused(RELEASE, is_paused=False)
    (model,) = site.fleet.models
    canary, *others = [replica.name for replica in site.fleet.replicas]
    old, new = declared_by(site.fleet), declared_by(release_of(site))
    deploy(site, canary)
    (asset,) = site.api.get("assets", name_pattern=RELEASE_ASSET)["assets"]
    extra = {"what": "model", "name": model.name, "version": NEW, "canary": canary, "needs_approval": True}
    site.api.post("assets/events", {"asset_id": asset["id"], "extra": extra})
    (run,) = site.api.wait_until(lambda: site.api.runs(RELEASE), 60, "the release's run")
    name, tasks = run["dag_run_id"], f"dags/{RELEASE}/dagRuns/{run['dag_run_id']}/taskInstances"
    waits_or_ended = {WAITING, "success", "failed", "upstream_failed", "skipped"}
    state = site.api.wait_until(
        lambda: found if (found := site.api.get(f"{tasks}/approve")["state"]) in waits_or_ended else "",
        runs.RUN_S,
        "the approval",
    )
    assert state == WAITING
    assert identities(site, model.name, canary) == new
    assert identities(site, model.name, others[0]) == old, "the rest is as it was"

    for replica in others:
        deploy(site, replica)
    write_fleet(release_of(site), Path(site.site.fleet_path))
    site.api.patch(f"{tasks}/approve/-1/hitlDetails", {"chosen_options": ["Approve"]})
    assert site.api.wait_for_run(RELEASE, name, runs.RUN_S) == "success"
    check_routing(site, name, RELEASE)
    assert [identities(site, model.name, replica) for replica in (canary, *others)] == [new] * len(site.doubles)
    assert runs.leases(site) == []


def test_a_queue_that_nobody_serves_is_named_at_once_and_others_go_on(site, undisturbed):
    site.airflow.parts.pop("worker-small").stop()
    run = site.api.trigger(runs.DAG, {**runs.SMALL, **FEW, "as_of": datetime.now(UTC).isoformat()})
    assert site.api.wait_for_run(runs.DAG, run, runs.RUN_S) == "failed"
    tasks = {task["task_id"]: task for task in site.api.task_instances(runs.DAG, run)}
    assert (tasks["small.worker"]["state"], tasks["small.worker"]["try_number"]) == ("failed", 1)
    assert tasks["small.twins"]["state"] == "upstream_failed"
    assert tasks["large.probe"]["state"] == tasks["publish"]["state"] == "success"
    assert "no worker serves its queue 'gpu.small'" in runs.log_of(site, run, "small.worker")
