"""What a night costs beside its work: 10^3, 10^5 and 10^6 items on a live Airflow, engines that answer at once.

The shipped DAG runs on the shipped settings, scheduler and Postgres real, tasks as processes of the scheduler
(LocalExecutor); a first run, which does not count, warms the processes up. *Overhead* is the wall time of the DAG run
in which no step was at work: scheduling, starting processes, importing, handing over. *Steps* is the rest of it:
reading and writing plan, receipts, evidence, values and marks, since the engines take no time. Overhead must not grow
with the items, and the number of tasks must not change.
"""

import json
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from tests.benchmarks import harness, null_night
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.local.airflow_site import AirflowSite
from warmup_tasks.local.postgres_server import PostgresServer
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.resources import dags_path, include_path
from warmup_tasks.serving import connect
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.settings import Site

NEEDS = "airflow"
ITEMS = {"1e3": 1_000, "1e5": 100_000, "1e6": 1_000_000}
DAG_ID = "nightly_warmup"
DEADLINE_S = 3600.0
EPOCH_TTL_S = 15.0
CLOCK = "NULL_NIGHT_CLOCK"
PRELUDE = f"""import os
from pathlib import Path
from tests.benchmarks.null_steps import install
install(Path(os.environ[{CLOCK!r}]))
"""
"""Stands before the shipped DAG's own text: Airflow finds tasks again by their file."""
SCHEDULE = re.compile(r"^    schedule=.*,$", re.MULTILINE)


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Run one night of each size; ``scale`` shrinks them."""
    sizes = {name: max(round(items * scale), 100) for name, items in ITEMS.items()}
    with _site(out) as (airflow, database_url):
        _night(airflow, database_url, out, min(sizes.values()))
        rows = {name: _night(airflow, database_url, out, items) for name, items in sizes.items()}
    headline = {f"overhead_s_{name}": row["overhead_s"] for name, row in rows.items()}
    headline |= {f"task_count_{name}": row["task_count"] for name, row in rows.items()}
    headline |= {
        "steps_s_1e6": rows["1e6"]["steps_s"],
        "steps_us_per_item_1e6": 1e6 * rows["1e6"]["steps_s"] / rows["1e6"]["items"],
        "peak_mb_1e6": rows["1e6"]["peak_mb"],
        "xcom_bytes_max": max(row["xcom_bytes_max"] for row in rows.values()),
    }
    return harness.result(
        "orchestration", headline, [{"contender": f"{name} items", **row} for name, row in rows.items()]
    )


@contextmanager
def _site(out: Path) -> Iterator[tuple[AirflowSite, str]]:
    fleet, clock, dags = null_night.null_fleet(), out / "clock", out / "dags"
    clock.mkdir()
    dags.mkdir()
    fleet_path = out / "fleet.yaml"
    fleet_path.write_text(yaml.safe_dump(fleet.model_dump(mode="json")), encoding="utf-8")
    shipped = (dags_path() / f"{DAG_ID}.py").read_text(encoding="utf-8")
    by_hand, changed = SCHEDULE.subn("    schedule=None,", shipped)
    if changed != 1:
        raise RuntimeError("the shipped DAG has no line with its schedule")
    (dags / f"{DAG_ID}.py").write_text(PRELUDE + by_hand, encoding="utf-8")
    with RedisServer() as redis, PostgresServer() as postgres, _epochs(redis.url, fleet):
        site = Site(
            lake_uri=str(out / "lake"),
            redis_url=redis.url,
            fleet_path=str(fleet_path),
            profiles_path=str(include_path("profiles.yaml")),
            report_folder=str(out / "report"),
        )
        path = os.pathsep.join([str(harness.FOLDER.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**site.to_environment(), CLOCK: str(clock), "PYTHONPATH": path}
        with AirflowSite(out / "airflow", dags, postgres.url, env) as airflow:
            airflow.api.wait_until(lambda: airflow.api.has_dag(DAG_ID), 120.0, "the DAG")
            airflow.api.set_paused(DAG_ID, is_paused=False)
            yield airflow, postgres.url


@contextmanager
def _epochs(redis_url: str, fleet: FleetFile) -> Iterator[None]:
    """Say the replicas' epoch again and again, as the agent does."""
    stop, said = threading.Event(), threading.Event()

    def agent() -> None:
        with connect(redis_url) as client:
            while not stop.is_set():
                for replica in fleet.replicas:
                    record = EpochRecord(replica=replica.name, epoch=null_night.EPOCH, observed_at=datetime.now(UTC))
                    EpochStore(client).publish(record, ttl_s=EPOCH_TTL_S)
                said.set()
                stop.wait(EPOCH_TTL_S / 5)

    thread = threading.Thread(target=agent, name="epochs")
    thread.start()
    said.wait()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _night(airflow: AirflowSite, database_url: str, out: Path, items: int) -> dict[str, Any]:
    for row in (out / "clock").iterdir():
        row.unlink()
    conf = {"as_of": null_night.AS_OF.isoformat(), "log": f"{null_night.ITEMS}{items}", "tuning_time_s": 0}
    run_id = airflow.api.trigger(DAG_ID, conf)
    state = airflow.api.wait_for_run(DAG_ID, run_id, DEADLINE_S)
    found = airflow.api.get(f"dags/{DAG_ID}/dagRuns/{run_id}")
    tasks = airflow.api.task_instances(DAG_ID, run_id)
    steps = [json.loads(path.read_text()) for path in (out / "clock").glob("*.json")]
    if state != "success":
        bad = [f"{task['task_id']} {task['state']}" for task in tasks if task["state"] not in ("success", "skipped")]
        raise RuntimeError(f"a null night of {items} items is no measurement: {', '.join(bad)}")
    published = json.loads((out / "report" / "summary.json").read_text())["items"]
    if published["ready"] != published["planned"]:
        raise RuntimeError(f"of {published['planned']} planned items {published['ready']} became ready")
    wall_s = (_time(found["end_date"]) - _time(found["start_date"])).total_seconds()
    steps_s = _covered_s([(row["begun"], row["ended"]) for row in steps])
    seconds: defaultdict[str, float] = defaultdict(float)
    for row in steps:
        seconds[row["step"]] += row["ended"] - row["begun"]
    return {
        "items": items,
        "wall_s": wall_s,
        "steps_s": steps_s,
        "overhead_s": wall_s - steps_s,
        "task_count": len(tasks),
        "task_waits_s": _waits_s(tasks),
        "xcom_bytes_max": _xcom_bytes_max(database_url, run_id),
        "peak_mb": max(row["peak_mb"] for row in steps),
        "ready": published["ready"],
        "seconds_by_step": dict(seconds),
    }


def _covered_s(spans: list[tuple[float, float]]) -> float:
    """Return the seconds in which at least one span was under way."""
    covered, until = 0.0, 0.0
    for begun, ended in sorted(spans):
        covered += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return covered


def _waits_s(tasks: list[dict[str, Any]]) -> float:
    """Return the mean time from being queued to having started, over the tasks that ran."""
    waits = [
        (_time(task["start_date"]) - _time(task["queued_when"])).total_seconds()
        for task in tasks
        if task.get("start_date") and task.get("queued_when")
    ]
    return sum(waits) / len(waits) if waits else 0.0


def _xcom_bytes_max(database_url: str, run_id: str) -> int:
    import sqlalchemy

    engine = sqlalchemy.create_engine(database_url)
    query = sqlalchemy.text("SELECT max(octet_length(value::text)) FROM xcom WHERE run_id = :run")
    with engine.connect() as connection:
        return int(connection.execute(query, {"run": run_id}).scalar_one())


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
