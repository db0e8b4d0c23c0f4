"""Kills in a live fleet: whatever dies, and whenever, what is ready after recovery is what an undisturbed night leaves.

A run is one night on Celery with one kill in each of its stages, at a random moment. A victim is a worker, the
scheduler, the serving store, the broker, the agent, a replica, the disk of the lake (full for a while) or the network
to a replica (silent for a while). Recovery is what a supervisor does, start again, and, where the ready set is not
whole by then, what an operator does: clear the run. Who was struck least is next. ``WARMUP_KILL_RUNS`` sets the runs.
"""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import BenchResult, result
from tests.support import fleet_runs as runs
from tests.support.full_disk import small_disk
from warmup_tasks.local.live_site import LiveSite

NEEDS = "airflow"
RUNS, SEED = 10, 0
STAGES = tuple(runs.STAGES)


def run(out: Path, scale: float = 1.0) -> BenchResult:
    """Make some runs, the undisturbed one first, and sum them up."""
    known = list[dict[str, Any]]()
    count = int(os.environ.get("WARMUP_KILL_RUNS") or max(1, round(RUNS * scale)))
    folder = out / "kill-site"
    moments = random.Random(SEED)
    with small_disk(folder / "lake") as disk, runs.fleet(folder) as site:
        names = [name for name in runs.Victims.NAMES if disk or name != "disk"]
        site.dag_ids()
        site.api.set_paused(runs.DAG, is_paused=False)
        undisturbed = _undisturbed(site)
        for _ in range(count):
            known += _struck(site, undisturbed, names, known, moments)
    return result("kill", _headline(known), [{"contender": row["victim"], **row} for row in known])


def _undisturbed(site: LiveSite) -> set[runs.Pair]:
    night = site.api.wait_until(lambda: site.api.runs(runs.DAG), 60, "tonight's run")[0]
    state = site.api.wait_for_run(runs.DAG, night["dag_run_id"], runs.RUN_S)
    ready = runs.ready_set(site)
    if state != "success" or ready != runs.planned_set(site, runs.newest_run(site)):
        raise RuntimeError(
            f"the undisturbed night ended as {state} with {len(ready)} items ready: nothing to compare with"
        )
    return ready


def _struck(
    site: LiveSite, undisturbed: set[runs.Pair], names: list[str], known: list[dict[str, Any]], moments: random.Random
) -> list[dict[str, Any]]:
    """Make one run with a kill in each stage; return one row a kill, the run's outcome in each."""
    runs.reset(site)
    victims, kills = runs.Victims(site, moments), list[dict[str, Any]]()
    # Another wish that changes nothing of the plan gives the run partitions of its own.
    conf = {**runs.SMALL, "as_of": site.as_of.isoformat(), "vocabulary_size": 32_000 + len(known)}
    name = site.api.trigger(runs.DAG, conf)
    for stage in STAGES:
        task = runs.wait_for_stage(site, name, stage)
        if task is None:
            break
        victim = _next(names, stage, [*known, *kills], moments)
        runs.after_a_while(moments)
        who = victims.kill(victim, task["hostname"] if victim == "worker" else "")
        kills.append({"stage": stage, "victim": victim, "who": who})
    state = site.api.wait_for_run(runs.DAG, name, runs.RUN_S)
    plan = runs.newest_run(site)
    is_cleared = state != "success" or runs.ready_set(site) != undisturbed
    tries = runs.most_tries(site, name)
    if is_cleared:
        state = runs.clear_and_end(site, name)
    ready = runs.ready_set(site)
    outcome = {
        "run": plan,
        "state": state,
        "is_cleared": is_cleared,
        "ready": len(ready),
        "differences": len(ready ^ undisturbed),
        "stale_marks": runs.stale_marks(site, plan, ready),
        "leases": len(runs.leases(site)),
        "max_warms_per_item": tries,
    }
    return [{**kill, **outcome} for kill in kills]


def _next(names: list[str], stage: str, known: list[dict[str, Any]], moments: random.Random) -> str:
    """Return the victim that was struck least, in this stage first."""
    here, anywhere = Counter(), Counter()
    for row in known:
        anywhere[row["victim"]] += 1
        here[row["victim"]] += row["stage"] == stage
    return min(names, key=lambda name: (anywhere[name], here[name], moments.random()))


def _headline(rows: list[dict[str, Any]]) -> dict[str, float]:
    last = {row["run"]: row for row in rows}.values()
    return {
        "kills": len(rows),
        "ready_set_differences": sum(row["differences"] for row in last),
        "stale_marks": sum(row["stale_marks"] for row in last),
        "orphaned_leases": sum(row["leases"] for row in last),
        "max_warms_per_item": max((row["max_warms_per_item"] for row in last), default=0),
        "runs": len(last),
        "cleared_share": sum(row["is_cleared"] for row in last) / max(1, len(last)),
        "kills_in_least_struck_stage": min(
            Counter(dict.fromkeys(STAGES, 0) | Counter(r["stage"] for r in rows)).values()
        ),
        "kills_of_least_struck_victim": min((Counter(row["victim"] for row in rows)).values(), default=0),
    }
