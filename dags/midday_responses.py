"""Renew the default responses, which live for 12 hours, and look again at the marks that stood before.

**What it does.** The steps of a night with the newest night's demand, for default responses alone: each is generated
anew at temperature 0, at a pace that spares live traffic, looked at, and marked for 12 more hours. Generating writes
into the replicas' caches, so at last *recheck* asks for what is marked on them: what still holds is renewed, the rest
voided.

**When.** At 12:00 UTC, before the night's responses end at 14:00. By hand after default responses were voided.

**What red means.** As in `nightly_warmup`; every task may be cleared with *downstream*.

- `begin`: a tuned parameter is refused. Follow the message.
- `profile`, `plan`: no replica answered, or no plan is possible. Follow the message.
- `<profile>.worker`: no worker serves the profile's queue. Start one.
- `<profile>.twins`, `<profile>.wave_<n>.warm`, `<profile>.probe`, `<profile>.publish`, `publish`: as at night. What
  was not renewed ends at its time.
- `<profile>_recheck`: the marks on the replicas were not looked at again. Clear it, or run `warmup recheck`.
- `done`: not a step; it is red when any of the above is.
"""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import CronTriggerTimetable, TriggerRule, dag

from warmup_tasks.airflow import renewals
from warmup_tasks.airflow.branches import stage
from warmup_tasks.airflow.retries import TASK_DEFAULTS
from warmup_tasks.airflow.routing import route
from warmup_tasks.airflow.shards import group_ids
from warmup_tasks.settings import load_profiles

PROFILES = load_profiles()
GROUPS = group_ids(profile.name for profile in PROFILES)


@dag(
    schedule=CronTriggerTimetable("0 12 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=TASK_DEFAULTS,
    doc_md=__doc__,
    tags=["warm-up"],
)
def midday_responses() -> None:
    """Renew default responses."""
    done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)
    renewed = stage(PROFILES, done)
    renewals.begin("default_responses") >> renewed.surveyed
    for hardware in PROFILES:
        looked = renewals.recheck.override(task_id=f"{GROUPS[hardware.name]}_recheck", **route(hardware))(hardware.name)
        renewed.published >> looked >> done


midday_responses()
