"""Load what will be asked for, prove that it is loaded and right, and only then mark it ready.

**What it does.** *begin* fixes what was asked; *extract* reads the request logs; *profile* surveys the replicas and
works out the demand; *plan* chooses and orders the items. Then, for each hardware profile on that profile's queue:
*replay_cold* (only when measuring), *twins* (cold answers to compare with), four waves of shards (embeddings; adapters;
default responses and QA pairs; KV prefixes), *probe*. At last *publish* marks what passed, *replay_warm* measures once
more, *report* writes the report. Beside all this *tune* looks for better golden parameters on this night's log, for
`tuning_time_s` at most; later nights take them, so nothing but the report waits for it.

**When.** Every night at 02:00 UTC, for the 24 hours from then on. Trigger it by hand after a deploy or a release: leave
`as_of` empty to plan from the run's logical date or, without one, from now. `dry_run` stops after the plan and reports
it; nothing but the survey touches a replica.

**What red means.** Items that fail singly never make a task red: they are counted in the report with their reasons. A
task is red only when somebody must act, and the run is red when any of its tasks but *tune* is. What could be proved is
published either way, and the report is written. Every task may be cleared and run again at any time; clear with
*downstream*.

- `begin`: a param is refused. The message names it; trigger again.
- `extract`: the log is missing or in an unknown format. Check `log` and `log_format`.
- `profile`: no replica answered, or tokenising failed. Check the fleet file and the replicas.
- `tune`: it was killed in every try, or the lake refused. The last values stay, and the run does not turn red for it.
  Give it more memory, or less time (`tuning_time_s`; 0 is off); the next night closes what it left open.
- `plan`: no plan is possible, or the plan has a profile that this DAG has no branch for. Follow the message.
- `<profile>.worker`: no worker serves the profile's queue. This profile stays cold; others go on. Start a worker.
- `<profile>.replay_cold`: the cold state was to be measured and could not be. This profile stays cold, so that it still
  can be; others go on. Check its replicas.
- `<profile>.twins`: no cold answers, so nothing could be proved. This profile stays cold; others go on. Check its
  replicas.
- `<profile>.wave_<n>.warm`: a replica or Redis failed in every try. The shard's items and what depends on them are not
  ready; everything else went on. Bring the replica back.
- `<profile>.probe`: this profile has no evidence, so none of its items became ready. Check its replicas.
- `publish`: too large a share failed, or Redis refused. Nothing new was published; only marks that are still true
  stand. Read the reasons in the report.
- `in_time.planned`, `in_time.published`: with `is_red_when_late`, the run will not be ready by `ready_by`, or was not.
  What is warmed is published all the same. Plan less, or start earlier.
- `replay_warm.<profile>`: the warm state could not be measured. The marks are published. Check its replicas.
- `report`: the report could not be written. The marks are published. Check the report's folder.
- `done`: not a step; it is red when any of the above but `tune` is.
"""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import CronDataIntervalTimetable, TaskGroup, TriggerRule, chain, dag

from warmup_tasks.airflow import tasks
from warmup_tasks.airflow.branches import after_all, stage
from warmup_tasks.airflow.params import form
from warmup_tasks.airflow.retries import TASK_DEFAULTS
from warmup_tasks.airflow.routing import route
from warmup_tasks.airflow.shards import group_ids
from warmup_tasks.settings import load_profiles

PROFILES = load_profiles()
GROUPS = group_ids(profile.name for profile in PROFILES)


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
    tuned, measured, reported = after_all("tuned"), after_all("measured"), tasks.report()
    done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)

    night = stage(PROFILES, done, is_measured=True)
    chain(tasks.begin(), tasks.extract(), night.surveyed, tasks.tune(), tuned)
    with TaskGroup("replay_warm"):
        for hardware in PROFILES:
            again = tasks.replay_warm.override(task_id=GROUPS[hardware.name], **route(hardware))(hardware.name)
            [night.published, night.served[hardware.name]] >> again >> [measured, done]
    night.published >> measured
    with TaskGroup("in_time"):
        night.planned >> tasks.in_time.override(task_id="planned")(is_published=False) >> done
        night.published >> tasks.in_time.override(task_id="published")(is_published=True) >> done
    [night.planned, measured, tuned] >> reported >> done


nightly_warmup()
