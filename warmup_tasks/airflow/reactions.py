"""What live events set off, as Airflow tasks and arrows: weighing, a run for new lives, a run for surges.

A body calls the library; what a run then does are the steps of a night (``tasks.py``). No decision is taken here.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import TaskGroup, XComArg, chain, get_current_context, task

from warmup_tasks import reactive
from warmup_tasks.airflow import context, renewals, tasks
from warmup_tasks.airflow.branches import Stage, after_all, waves
from warmup_tasks.airflow.routing import route
from warmup_tasks.airflow.shards import group_ids
from warmup_tasks.settings import HardwareProfile


@task
def weigh() -> context.Summary:
    """Decide what is done about the live events that triggered this run, or take what an operator asks for."""
    current, site = get_current_context(), context.current_site()
    if events := triggering_events():
        return context.small(reactive.weigh(site, events, current["dag_run"].run_id, datetime.now(UTC)))
    asked = current["params"]
    return context.small(reactive.by_hand(site, asked["replicas"], is_surge=asked["is_surge"]))


@task.short_circuit
def is_any(what: str) -> bool:
    """Stop here where no replica is to be warmed for this."""
    return bool(context.pull("weigh")[what])


@task
def begin(what: str) -> context.Summary:
    """Fix the run that warms the replicas of one outcome of the weighing, ``joined`` or ``surged``."""
    begin_run = {"joined": reactive.joined_run, "surged": reactive.surged_run}[what]
    replicas, moment = context.pull("weigh")[what], get_current_context()["dag_run"].run_after
    return begin_run(context.current_site(), replicas, moment).model_dump(mode="json")


@task
def surge_demand() -> context.Summary:
    """Survey the replicas and turn the newest requests into demand."""
    return context.call(reactive.surge_demand)


def triggering_events() -> list[context.Summary]:
    """Return the live events that the current DAG run was triggered by, oldest first; none for a run by hand."""
    found = get_current_context().get("triggering_asset_events") or {}
    payloads = [(event.extra or {}).get("payload") or {} for events in found.values() for event in events]
    return [event for payload in payloads for event in payload.get("events", [])]


def loading(profiles: Sequence[HardwareProfile], done: Any) -> Stage:
    """Wire survey, plan and the waves alone, and at last a re-check of the marks that stood before.

    For what serves already and gets more: its own marks are looked at again, no new ones are published.

    Args:
        profiles: of the profiles file.
        done: the task that turns red when something failed on the way.
    """
    groups = group_ids(profile.name for profile in profiles)
    surveyed, planned, allowed = surge_demand(), tasks.plan(list(groups)), tasks.go_ahead()
    warmed = after_all("warmed")
    chain(surveyed, planned, allowed)
    served: dict[str, XComArg] = {}
    for hardware in profiles:
        with TaskGroup(groups[hardware.name]):
            served[hardware.name] = found = tasks.worker(hardware.name, hardware.queue)
            looked = renewals.recheck.override(**route(hardware))(hardware.name)
            allowed >> found
            chain(waves(hardware, [found], done), looked, [warmed, done])
    return Stage(surveyed, planned, warmed, served)
