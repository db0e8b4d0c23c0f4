"""The steps of a warm-up as Airflow tasks, one each, for every DAG of the package to wire.

A body calls the library and returns a small summary. No arrows here (``branches.py``), and no decision.
"""

from airflow.sdk import TriggerRule, task

from warmup_tasks import nightly, rollout
from warmup_tasks.airflow import context
from warmup_tasks.airflow.routing import check_worker
from warmup_tasks.airflow.shards import check_shards, shards_of


@task
def begin() -> context.Summary:
    """Fix what was asked: refuse wrong params, settle as_of."""
    return context.begin()


@task
def extract() -> context.Summary:
    """Read the log into the lake's day partitions."""
    return context.call(nightly.extract)


@task
def profile() -> context.Summary:
    """Survey the replicas and turn requests into demand."""
    return context.call(nightly.profile)


@task
def tune() -> context.Summary:
    """Tune the parameters of later nights within the run's time for it."""
    return context.call(nightly.tune)


@task
def plan(profiles: list[str]) -> context.Summary:
    """Choose and order the items; hand on the shard ids."""
    return check_shards(context.call(nightly.plan), profiles)


@task.short_circuit(ignore_downstream_trigger_rules=False)
def go_ahead() -> bool:
    """Stop here what warms nothing: a dry run, a past day of a backfill, what a newer plan has taken over."""
    return context.goes_ahead()


@task
def worker(name: str, queue: str) -> context.Summary:
    """Fail at once where nobody serves the queue of a profile that has something to warm."""
    return check_worker(name, queue) if context.pull("plan")["shards"].get(name) else {"queue": queue}


@task(trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
def twins(name: str) -> context.Summary:
    """Ask the cold twins of the sampled items."""
    return context.call(nightly.twins, name)


@task
def shards(name: str, wave: int) -> list[str]:
    """List the shards of one profile and wave."""
    return shards_of(context.pull("plan"), name, wave)


@task(trigger_rule=TriggerRule.ALL_DONE)
def warm(shard: str) -> context.Summary:
    """Warm one shard, whatever became of the shards before it: receipts say which dependencies failed."""
    return context.call(nightly.warm, shard)


@task
def probe(name: str) -> context.Summary:
    """Probe one profile's replicas, hottest first."""
    return context.call(nightly.probe, name)


@task
def in_time(*, is_published: bool) -> context.Summary:
    """Say whether the run will be ready in time, or was."""
    return context.in_time(is_published=is_published)


@task
def publish_profile(name: str) -> context.Summary:
    """Publish one profile while others still warm."""
    return context.call(nightly.publish_profile, name)


@task
def publish() -> context.Summary:
    """Check the evidence as a whole and publish what passed."""
    return context.call(nightly.publish)


@task
def replay_cold(name: str) -> context.Summary:
    """Replay the first requests after as_of against the cold replicas, if asked to measure."""
    return context.measure(nightly.replay, name, "cold")


@task
def replay_warm(name: str) -> context.Summary:
    """Replay the same requests against the warm replicas, if asked to measure."""
    return context.measure(nightly.replay, name, "warm")


@task(task_id="begin", trigger_rule=TriggerRule.NONE_FAILED)
def begin_release(part: str) -> context.Summary:
    """Fix the run of one part of a release."""
    return context.begin_release(part)


@task
def void() -> context.Summary:
    """Void on the part's replicas what the release makes wrong."""
    return context.call(rollout.void)


@task(trigger_rule=TriggerRule.NONE_FAILED)
def judge() -> context.Summary:
    """Judge the canary by the evidence of its run."""
    return context.call_in("canary", rollout.judge)


@task.short_circuit(trigger_rule=TriggerRule.NONE_FAILED, ignore_downstream_trigger_rules=False)
def needs_approval() -> bool:
    """Ask a person only where the release says so."""
    return context.needs_approval()


@task(trigger_rule=TriggerRule.ONE_FAILED)
def take_back() -> context.Summary:
    """Void what the canary's run published; say which old marks are still true."""
    return context.call_in("canary", rollout.take_back)


@task(trigger_rule=TriggerRule.NONE_FAILED)
def settle() -> context.Summary:
    """Drop what is left of the old identities."""
    return context.settle()


@task
def report() -> context.Summary:
    """Write the report."""
    return context.call(nightly.report, context.report_folder())
