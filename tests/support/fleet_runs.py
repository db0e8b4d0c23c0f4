"""A live fleet for tests and benchmarks: Celery, two workers on two profile queues, four replicas, and its victims.

The victims end without warning and come back by themselves, as a supervisor would bring them back. What a run leaves is
compared as sets of (item, replica).
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.support import full_disk
from warmup_tasks.items import ItemKind, Payload, PlanRow
from warmup_tasks.lake import Lake
from warmup_tasks.lake.schemas import from_table
from warmup_tasks.local.airflow_site import Worker
from warmup_tasks.local.live_site import LiveSite
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.serving.readiness import mark_verdict

DAG = "nightly_warmup"
WORKERS = (Worker("worker-large", ("gpu.large", "default")), Worker("worker-small", ("gpu.small",)))
QUEUES = {queue: worker.name for worker in WORKERS for queue in worker.queues}
SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "25",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
}
"""What the fleet notices after minutes, a test notices after seconds."""
RETRY_PAUSE = timedelta(seconds=1)
SMALL = {"max_twins": 6, "tuning_time_s": 0}
"""Wishes that make a night short, and change nothing of its plan."""
STAGES = {"survey": "profile", "twins": ".twins", "warm": ".warm", "probe": ".probe", "publish": "publish"}
"""Stage → how the ids of its tasks end."""
RUN_S = 300.0
OUTAGE_S = 5.0
BLOCK = 16

Pair = tuple[str, str | None]


def fleet(folder: Path, *, scale: float = 0.1, tell: Callable[[str], None] = lambda _: None) -> LiveSite:
    """Return the fleet, to be started."""
    return LiveSite(
        folder,
        datetime.now(UTC),
        replicas_per_profile=2,
        workers=WORKERS,
        settings=SETTINGS,
        retry_pause=RETRY_PAUSE,
        scale=scale,
        tell=tell,
    )


def ready_set(site: LiveSite) -> set[Pair]:
    """Return what is ready now: marks that hold, as a reader would judge them."""
    with connect(site.redis.url) as redis:
        names = [replica.name for replica in site.fleet.replicas]
        published = dict(zip(names, EpochStore(redis).read_many(names), strict=True))
        reaches = [
            *(Reach(model=model.name) for model in site.fleet.models),
            Reach(embedder=site.fleet.embedder.embedder),
        ]
        marks = [mark for reach in reaches for mark in MarkStore(redis).find(reach)]
    now = datetime.now(UTC)
    held = [mark for mark in marks if mark_verdict(mark, now, published.get(mark.replica or "")).is_ready]
    return {(mark.item_id, mark.replica) for mark in held}


def planned_set(site: LiveSite, run_id: str) -> set[Pair]:
    """Return what a run chose to warm."""
    rows = from_table(Lake(site.site.lake_uri).read(f"plan/{run_id}", "plan"), PlanRow)
    return {(row.item_id, row.replica) for row in rows if row.is_chosen}


def newest_run(site: LiveSite) -> str:
    """Return the id of the newest plan in the lake."""
    folder = Path(site.site.lake_uri) / "plan"
    return max(Lake(site.site.lake_uri).partitions("plan"), key=lambda name: (folder / name).stat().st_mtime)


def leases(site: LiveSite) -> list[str]:
    """Return the leases that somebody holds, or seems to."""
    with connect(site.redis.url) as redis:
        return [key.decode() for key in redis.scan_iter("*:lease:*")]


def reset(site: LiveSite) -> None:
    """Leave the fleet cold: empty stores and caches, new epochs, published anew."""
    site.agent.stop()
    for name in site.doubles:
        site.restart_replica(name)
    with connect(site.redis.url) as redis:
        redis.flushall()
    site.start_agent()


def wrong_hosts(site: LiveSite, dag_id: str, run_id: str) -> list[str]:
    """Return the tasks of a run that ran elsewhere than on the worker of their queue."""
    tasks = site.api.task_instances(dag_id, run_id)
    ran = [task for task in tasks if task["hostname"]]
    return [
        f"{task['task_id']}: queue {task['queue']} on {task['hostname']}"
        for task in ran
        if task["hostname"] != QUEUES[task["queue"]]
    ]


def queues_that_carried(site: LiveSite, dag_id: str, run_id: str) -> Counter[str]:
    """Return how many tasks of a run each queue carried."""
    return Counter(task["queue"] for task in site.api.task_instances(dag_id, run_id) if task["hostname"])


def log_of(site: LiveSite, run_id: str, task_id: str) -> str:
    """Return what a task's first try wrote."""
    return str(site.api.get(f"dags/{DAG}/dagRuns/{run_id}/taskInstances/{task_id}/logs/1", full_content=True))


def wait_for_stage(site: LiveSite, run_id: str, stage: str, dag_id: str = DAG) -> dict[str, Any] | None:
    """Wait until a task of the stage runs and return it; None when the run ended without one being seen."""

    def look() -> list[dict[str, Any]]:
        tasks = site.api.task_instances(dag_id, run_id)
        found = [task for task in tasks if task["task_id"].endswith(STAGES[stage]) and task["state"] == "running"]
        return found or ([{}] if site.api.state(dag_id, run_id) in ("success", "failed") else [])

    (task, *_) = site.api.wait_until(look, RUN_S, f"a task of {stage}")
    return task or None


class Victims:
    """What may be killed, by name; each call kills, and brings back."""

    NAMES = ("worker", "scheduler", "redis", "broker", "agent", "replica", "network", "disk")

    def __init__(self, site: LiveSite, moments: random.Random) -> None:
        self._site, self._moments = site, moments

    def kill(self, name: str, hostname: str = "") -> str:
        """Kill a victim and start it again; returns which one it was."""
        return str(getattr(self, f"_{name}")(hostname))

    def _worker(self, hostname: str) -> str:
        name = hostname or self._moments.choice(WORKERS).name
        self._part(name)
        return name

    def _scheduler(self, _: str) -> str:
        self._part("scheduler")
        return "scheduler"

    def _part(self, name: str) -> None:
        self._site.airflow.parts[name].kill()
        self._site.airflow.launch(name)

    def _redis(self, _: str) -> str:
        self._site.redis.kill()
        self._site.redis.start()
        return "redis"

    def _broker(self, _: str) -> str:
        self._site.broker.kill()
        self._site.broker.start()
        return "broker"

    def _agent(self, _: str) -> str:
        self._site.agent.kill()
        self._site.start_agent()
        return "agent"

    def _replica(self, _: str) -> str:
        name = self._moments.choice(sorted(self._site.doubles))
        self._site.restart_replica(name)
        return name

    def _network(self, _: str) -> str:
        """A replica that is stopped answers nobody, as behind a cut line, and keeps its cache."""
        name = self._moments.choice(sorted(self._site.doubles))
        group = self._site.doubles[name].pid
        os.killpg(group, signal.SIGSTOP)
        time.sleep(OUTAGE_S)
        os.killpg(group, signal.SIGCONT)
        return name

    def _disk(self, _: str) -> str:
        lake = Path(self._site.site.lake_uri)
        full_disk.fill(lake)
        time.sleep(OUTAGE_S)
        full_disk.free(lake)
        return "lake"


def after_a_while(moments: random.Random, most_s: float = 1.5) -> None:
    """Let a random while pass: the moment of a kill is chance."""
    time.sleep(moments.uniform(0, most_s))


def clear_and_end(site: LiveSite, run_id: str, deadline_s: float = RUN_S) -> str:
    """Do what an operator does after trouble: clear the whole run, wait for its end."""
    site.api.post(f"dags/{DAG}/dagRuns/{run_id}/clear", {"dry_run": False})
    return site.api.wait_for_run(DAG, run_id, deadline_s)


def most_tries(site: LiveSite, run_id: str) -> int:
    """Return how often a shard was begun at most, which is how often one of its items was warmed at most."""
    tasks = site.api.task_instances(DAG, run_id)
    return max((task["try_number"] for task in tasks if task["task_id"].endswith(".warm")), default=0)


def stale_marks(site: LiveSite, run_id: str, ready: set[Pair]) -> int:
    """Return how many prefixes are called ready that their replica does not hold, or holds wrong."""
    lake = Lake(site.site.lake_uri)
    payloads = {row.payload_sha256: row for row in from_table(lake.read(f"plan/{run_id}", "payloads"), Payload)}
    rows = from_table(lake.read(f"plan/{run_id}", "plan"), PlanRow)
    stale = 0
    for row in rows:
        if row.kind is ItemKind.KV_PREFIX and (row.item_id, row.replica) in ready:
            payload = payloads[row.payload_sha256 or ""]
            body = {"model": row.adapter or row.model, "prompt": payload.token_ids, "cache_salt": row.cache_salt}
            answer = httpx.post(f"{site.doubles[row.replica or ''].url}/double/residency", json=body, timeout=10)
            seen = answer.json() if answer.is_success else {"found": 0, "right": 0}
            stale += min(seen["found"], seen["right"]) < payload.expected_cached_tokens // BLOCK
    return stale
