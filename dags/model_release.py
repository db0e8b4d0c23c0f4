"""Re-warm what a release makes wrong: the canary first, judged by its evidence, then the rest of the fleet.

**What it does.** A release replaces a model's weights, an adapter, the embedder or its lexicon. *void* first takes away
the marks of the old identity on the replicas at hand; then the night's steps plan and warm what the release reaches and
publish what is proved. First for one replica, the *canary*; *judge* looks at its evidence: published, ready, of the
declared identity. With `needs_approval` a person decides in *approve* (*Required actions* in the UI). Then the same for
all other replicas. At last *settle* drops what is left of the old identity. An embedder's or a lexicon's release has no
canary: nothing on a replica changes.

**When.** On an event of the asset `warmup_release`, whose extra says what comes, for instance `{"what": "model",
"name": "llama", "version": "r2"}`: from an upstream DAG, from REST (`POST /api/v2/assets/events`) or from the asset's
page in the UI. Or triggered by hand with the form. Deploy the new version on the canary before, on the others before
they are reached: at the latest while *approve* waits. Until the fleet file says the new version, readers and the next
night go by the old one. `dry_run` shows what would fall, both plans and their cost; nothing is voided or warmed.

**Rolling back.** A release that ends at its canary leaves the other replicas and their marks as they are; *take_back*
voids what the canary's run published and returns how many old marks are still true on each replica. Deploy the old
version on the canary again and trigger this DAG with it. After *settle*, too, rolling back is a release to the old
version.

**What red means.** The steps of a night mean what they mean in `nightly_warmup`; beside them:

- `canary.begin`, `rest.begin`: a field is refused, or the fleet file does not list what is replaced. Nothing was done;
  trigger again.
- `canary.void`, `rest.void`: Redis did not answer. Clear it; voiding again finishes it.
- `canary.judge`: the canary is not good enough, the message says why. The rest stays as it is; see *Rolling back*.
- `approve`: somebody rejected the release. As above.
- `take_back`: Redis did not answer. Clear it.
- `settle`: the fleet file still says the old version. Write the new one into it, clear this task.
- `canary.report`, `rest.report`: the report could not be written. Check the report's folder.
- `canary.done`, `rest.done`, `done`: not steps; red when any of the above is.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Asset, TaskGroup, TriggerRule, XComArg, chain, dag

from warmup_tasks.airflow import tasks
from warmup_tasks.airflow.branches import Stage, after_all, stage
from warmup_tasks.airflow.context import RELEASE_ASSET
from warmup_tasks.airflow.params import form
from warmup_tasks.airflow.retries import TASK_DEFAULTS
from warmup_tasks.releases import Change
from warmup_tasks.settings import load_profiles

PROFILES = load_profiles()
ANSWER_WITHIN = timedelta(days=1)


def joint() -> EmptyOperator:
    """Return a last task, red when anything before it is."""
    return EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)


def part(name: str, done: EmptyOperator) -> tuple[Stage, XComArg]:
    """Wire one part of the release in a group of its own; return its stage and the task that begins it."""
    with TaskGroup(name):
        ended, reported, over = after_all("ended"), tasks.report(), joint()
        begun, night = tasks.begin_release(name), stage(PROFILES, over)
        chain(begun, tasks.void(), tasks.extract(), night.surveyed)
        night.published >> ended
        chain([night.planned, ended], reported, over, done)
    return night, begun


@dag(
    schedule=[Asset(RELEASE_ASSET)],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=TASK_DEFAULTS,
    params=form(Change),
    doc_md=__doc__,
    tags=["warm-up"],
)
def model_release() -> None:
    """Warm the fleet for what is released."""
    judged, asked, settled, done = tasks.judge(), tasks.needs_approval(), tasks.settle(), joint()
    approved = ApprovalOperator(
        task_id="approve",
        subject="Release the rest of the fleet?",
        body="Canary: {{ ti.xcom_pull(task_ids='judge') or 'none, nothing on a replica changes' }}",
        response_timeout=ANSWER_WITHIN,
        fail_on_reject=True,
        retries=0,
    )
    canary, _ = part("canary", done)
    rest, others = part("rest", done)
    chain(canary.published, judged, asked, approved, others)
    judged >> others
    chain(rest.published, settled, done)
    [judged, approved] >> tasks.take_back() >> done


model_release()
