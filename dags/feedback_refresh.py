"""Renew the answers that feedback corrected.

**What it does.** *read_on* reads what came into the log since; *void_outdated* looks for QA pairs whose stored answer
is not the correction that feedback adopted (confidence below 0.85, adopted at least 3 times) and voids their marks:
from then on nobody is given the old answer. Only where there are such pairs, the steps of a night follow, with the
newest night's demand and for corrected pairs alone: the correction is stored under the same key, looked at, and marked.
No engine generates anything.

**When.** Every hour. By hand after feedback was imported.

**What red means.** As in `nightly_warmup`; every task may be cleared with *downstream*. A pair whose mark was voided
stays without an answer until its run has come to its end; the next hour's run finds it again.

- `begin`: a tuned parameter is refused. Follow the message.
- `read_on`: the log cannot be read. Check the site's log.
- `void_outdated`: Redis or the lake does not answer. Nothing was changed, or marks fell that had to fall.
- `profile`, `plan`: no replica answered, or no plan is possible. Follow the message.
- `<profile>.worker`: no worker serves the profile's queue. Start one.
- `<profile>.twins`, `<profile>.wave_<n>.warm`, `<profile>.probe`, `<profile>.publish`, `publish`: as at night.
- `done`: not a step; it is red when any of the above is.
"""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import CronTriggerTimetable, TriggerRule, chain, dag

from warmup_tasks.airflow import renewals
from warmup_tasks.airflow.branches import stage
from warmup_tasks.airflow.retries import TASK_DEFAULTS
from warmup_tasks.settings import load_profiles

PROFILES = load_profiles()


@dag(
    schedule=CronTriggerTimetable("20 * * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=TASK_DEFAULTS,
    doc_md=__doc__,
    tags=["warm-up"],
)
def feedback_refresh() -> None:
    """Renew corrected pairs."""
    done = EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)
    renewed = stage(PROFILES, done)
    begun = renewals.begin("corrected_pairs")
    chain(begun, renewals.read_on(), renewals.void_outdated(), renewals.is_due(), renewed.surveyed)


feedback_refresh()
