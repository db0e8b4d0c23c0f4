"""Look again at what is marked on the replicas, shortly before the peak.

**What it does.** *is_peak_near* asks the lake for the busiest hour of the week, and goes on when it begins in
`lead_time_s`. Then, for each hardware profile on its queue, *recheck* asks for what is marked, hottest first and at a
pace that spares live traffic: what still hits has its mark renewed, what misses is void, readiness is counted anew.

**When.** It looks every 15 minutes and re-checks once a day. By hand it re-checks at once.

**What red means.** Every task may be cleared and run again.

- `is_peak_near`: the lake does not answer.
- `<profile>`: a replica or Redis failed in every try. Marks that were not looked at stand as they were and end at their
  time.
"""

from datetime import UTC, datetime

from airflow.sdk import CronTriggerTimetable, dag

from warmup_tasks.airflow import renewals
from warmup_tasks.airflow.retries import TASK_DEFAULTS
from warmup_tasks.airflow.routing import route
from warmup_tasks.airflow.shards import group_ids
from warmup_tasks.settings import load_profiles

PROFILES = load_profiles()
GROUPS = group_ids(profile.name for profile in PROFILES)


@dag(
    schedule=CronTriggerTimetable("*/15 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=TASK_DEFAULTS,
    doc_md=__doc__,
    tags=["warm-up"],
)
def recheck_marks() -> None:
    """Re-check before the peak."""
    near = renewals.is_peak_near()
    for hardware in PROFILES:
        looked = renewals.recheck.override(task_id=GROUPS[hardware.name], trigger_rule="all_success", **route(hardware))
        near >> looked(hardware.name)


recheck_marks()
