"""Load what will be asked for, prove that it is loaded and right, and only then mark it ready.

**What it does.** *begin* fixes what was asked; *extract* reads the request logs; *profile* surveys the replicas and
works out the demand; *plan* chooses and orders the items. Then, for each hardware profile on that profile's queue:
*replay_cold* (only when measuring), *twins* (cold answers to compare with), four waves of shards (embeddings; adapters;
default responses and QA pairs; KV prefixes), *probe*. At last *publish* marks what passed, *replay_warm* measures once
more, *report* writes the report.

**When.** Every night at 02:00 UTC, for the 24 hours from then on. Trigger it by hand after a deploy or a release: leave
`as_of` empty to plan from the run's logical date or, without one, from now. `dry_run` stops after the plan and reports
it; nothing but the survey touches a replica.

**What red means.** Items that fail singly never make a task red: they are counted in the report with their reasons. A
task is red only when somebody must act, and the run is red when any of its tasks is. What could be proved is published
either way, and the report is written. Every task may be cleared and run again at any time; clear with *downstream*.

- `begin`: a param is refused. The message names it; trigger again.
- `extract`: the log is missing or in an unknown format. Check `log` and `log_format`.
- `profile`: no replica answered, or tokenising failed. Check the fleet file and the replicas.
- `plan`: no plan is possible, or the plan has a profile that this DAG has no branch for. Follow the message.
- `<profile>.replay_cold`: the cold state was to be measured and could not be. This profile stays cold, so that it still
  can be; others go on. Check its replicas.
- `<profile>.twins`: no cold answers, so nothing could be proved. This profile stays cold; others go on. Check its
  replicas.
- `<profile>.wave_<n>.warm`: a replica or Redis failed in every try. The shard's items and what depends on them are not
  ready; everything else went on. Bring the replica back.
- `<profile>.probe`: this profile has no evidence, so none of its items became ready. Check its replicas.
- `publish`: too large a share failed, or Redis refused. Nothing new was published; only marks that are still true
  stand. Read the reasons in the report.
- `replay_warm.<profile>`: the warm state could not be measured. The marks are published. Check its replicas.
- `report`: the report could not be written. The marks are published. Check the report's folder.
- `done`: not a step; it is red when any of the above is.
"""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import CronDataIntervalTimetable, TaskGroup, TriggerRule, XComArg, chain, dag, task

from warmup_tasks import nightly
from warmup_tasks.airflow import context
from warmup_tasks.airflow.params import form
from warmup_tasks.airflow.retries import TASK_DEFAULTS
from warmup_tasks.airflow.shards import check_shards, group_ids, shards_of
from warmup_tasks.items import WAVES
from warmup_tasks.settings import HardwareProfile, load_profiles

PROFILES = load_profiles()
GROUPS = group_ids(profile.name for profile in PROFILES)


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
def plan() -> context.Summary:
    """Choose and order the items; hand on the shard ids."""
    return check_shards(context.call(nightly.plan), GROUPS)


@task.short_circuit(ignore_downstream_trigger_rules=False)
def go_ahead() -> bool:
    """Stop a dry run here."""
    return not context.current_run().request.dry_run


@task(trigger_rule=TriggerRule.NONE_FAILED)
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


@task
def report() -> context.Summary:
    """Write the report."""
    return context.call(nightly.report, context.report_folder())


def after_all(task_id: str) -> EmptyOperator:
    """Return a joint that waits for its upstream tasks, whatever became of them; it runs on no worker."""
    return EmptyOperator(task_id=task_id, trigger_rule=TriggerRule.ALL_DONE)


def branch(hardware: HardwareProfile, allowed: XComArg, probed: EmptyOperator, done: EmptyOperator) -> None:
    """Wire one hardware profile's branch between the plan and the publication.

    A wave maps over a list that exists only after the twins, so it needs them, while it does not mind failed shards in
    the wave before. What failed on the way reaches ``done`` alone.
    """
    name, queue = hardware.name, hardware.queue
    with TaskGroup(GROUPS[name]):
        cold = replay_cold.override(queue=queue)(name)
        asked = twins.override(queue=queue)(name)
        warmed, seen = after_all("warmed"), probe.override(queue=queue)(name)
        before: list[XComArg] = []
        for wave in WAVES:
            with TaskGroup(f"wave_{wave}"):
                listed = shards(name, wave)
                shard = warm.override(queue=queue).expand(shard=listed)
            asked >> listed
            before >> shard >> done
            before = [shard]
        chain(allowed, [cold, asked])
        cold >> asked
        chain(shard, warmed, seen, probed)
        asked >> seen >> done


@dag(
    schedule=CronDataIntervalTimetable("0 2 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=TASK_DEFAULTS,
    params=form(),
    doc_md=__doc__,
    tags=["warm-up"],
)
def nightly_warmup() -> None:
    """Warm the fleet for the day that begins."""
    planned, allowed = plan(), go_ahead()
    probed, measured = after_all("probed"), after_all("measured")
    published, reported = publish(), report()
    done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)

    chain(begin(), extract(), profile(), planned, allowed)
    for hardware in PROFILES:
        branch(hardware, allowed, probed, done)
    [allowed, probed] >> published
    with TaskGroup("replay_warm"):
        for hardware in PROFILES:
            again = replay_warm.override(task_id=GROUPS[hardware.name], queue=hardware.queue)(hardware.name)
            published >> again >> [measured, done]
    published >> measured
    [planned, measured] >> reported
    [published, reported] >> done


nightly_warmup()
