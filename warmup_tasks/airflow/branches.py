"""The arrows that all DAGs share: from the survey to the publication, one branch for each hardware profile.

Wiring alone: what a task does stands in ``tasks.py``. Tasks find the run and the plan of their own group, so a DAG may
hold several of these stages, each in a group with its own ``begin``.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import TaskGroup, TriggerRule, XComArg, chain

from warmup_tasks.airflow import tasks
from warmup_tasks.airflow.routing import route
from warmup_tasks.airflow.shards import group_ids
from warmup_tasks.items import WAVES
from warmup_tasks.settings import HardwareProfile


class Stage(NamedTuple):
    """The ends of a wired stage: what begins it, hands on the plan, publishes; by profile, what saw a worker there."""

    surveyed: XComArg
    planned: XComArg
    published: XComArg
    served: dict[str, XComArg]


def after_all(task_id: str) -> EmptyOperator:
    """Return a joint that waits for its upstream tasks, whatever became of them; it runs on no worker."""
    return EmptyOperator(task_id=task_id, trigger_rule=TriggerRule.ALL_DONE)


def stage(profiles: Sequence[HardwareProfile], done: Any, *, is_measured: bool = False) -> Stage:
    """Wire survey, plan, a branch for each profile and the publication into the DAG or group that is open.

    Args:
        profiles: of the profiles file.
        done: the task that turns red when something failed on the way.
        is_measured: whether each branch may replay requests against its replicas while they are cold.
    """
    groups = group_ids(profile.name for profile in profiles)
    surveyed, planned, allowed = tasks.profile(), tasks.plan(list(groups)), tasks.go_ahead()
    probed, published = after_all("probed"), tasks.publish()
    chain(surveyed, planned, allowed)
    served: dict[str, XComArg] = {}
    for hardware in profiles:
        served[hardware.name] = _branch(hardware, groups[hardware.name], allowed, probed, done, is_measured=is_measured)
    [allowed, probed] >> published >> done
    return Stage(surveyed, planned, published, served)


def waves(hardware: HardwareProfile, first: list[XComArg], done: Any) -> XComArg:
    """Wire the waves of one profile, one after the other, all after ``first``; return the last one's shards."""
    before: list[XComArg] = []
    for wave in WAVES:
        with TaskGroup(f"wave_{wave}"):
            listed = tasks.shards(hardware.name, wave)
            shard = tasks.warm.override(**route(hardware)).expand(shard=listed)
        first >> listed
        before >> shard >> done
        before = [shard]
    return before[-1]


def _branch(
    hardware: HardwareProfile, group: str, allowed: XComArg, probed: EmptyOperator, done: Any, *, is_measured: bool
) -> XComArg:
    """Wire one hardware profile's branch between the plan and the publication.

    Nothing goes to a queue that nobody serves: such a branch fails before, with that sentence, and others go on.

    A wave maps over a list that exists only after the twins, so it needs them, while it does not mind failed shards in
    the wave before. What failed on the way reaches ``done`` alone.
    """
    name, there = hardware.name, route(hardware)
    with TaskGroup(group):
        served = tasks.worker(name, hardware.queue)
        asked = tasks.twins.override(**there)(name)
        warmed, seen = after_all("warmed"), tasks.probe.override(**there)(name)
        shard = waves(hardware, [asked], done)
        allowed >> [served, asked]
        served >> asked
        if is_measured:
            cold = tasks.replay_cold.override(**there)(name)
            chain(served, cold, asked)
        ready = tasks.publish_profile.override(task_id="publish")(name)
        chain(shard, warmed, seen, ready, probed)
        asked >> seen
        [seen, ready] >> done
    return served
