"""Warm on the spot what live events ask for: a replica that joined or restarted, a surge.

**What it does.** *weigh* looks at the events that triggered the run and decides, replica by replica: warm it, or leave
it and say why (ready already, its epoch has passed, cooling down, taken up by another run, too old, no demand known).
Then two groups, each only where there is something to do. *joined*: the newest night's demand is planned anew for these
replicas, adapters and prefixes alone; a few cold twins, the waves, probes, marks: the readiness probe (`/ready` of the
agent) opens then. *surged*: the log is read on, what was asked for in the last minutes is loaded, and the marks that
stood before are looked at again. Everything goes at a pace that spares live traffic: a cap in tokens a minute that
follows its P99, small steps, nothing while the SLO is violated.

**When.** When the agent writes an event into the stream; events within 5 s make one run, one run goes at a time, a
surge of one replica counts once in 5 minutes. It needs a triggerer. By hand: name `replicas`, or leave them empty for
all that are not ready; `is_surge` loads what was asked for last instead.

**What red means.** As in `nightly_warmup`, and every task may be cleared with *downstream*.

- `weigh`: Redis or the fleet file cannot be read. The events are not lost: clear it.
- `joined.begin`, `surged.begin`: a tuned parameter is refused. Follow the message.
- `joined.profile`, `surged.surge_demand`: no replica answered, or the night's demand is gone. The replica may not be
  up yet: clear it.
- `surged.read_on`: the log cannot be read. Check the site's log.
- `joined.plan`, `surged.plan`: no plan is possible. Follow the message.
- `<group>.<profile>.worker`: no worker serves the profile's queue. Start one, clear the task.
- `<group>.<profile>.wave_<n>.warm`: a replica or Redis failed in every try. What depends on it is not ready.
- `joined.<profile>.twins`, `joined.<profile>.probe`, `joined.publish`: nothing could be proved there, so the readiness
  probe stays closed. Check the replica, clear the task.
- `surged.<profile>.recheck`: the marks that stood before were not looked at again, and may be wrong for what was
  evicted. Clear it, or run `warmup recheck`.
- `joined.done`, `surged.done`: not steps; red when any of the above is.
"""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import Asset, AssetWatcher, Param, TaskGroup, TriggerRule, chain, dag

from warmup_tasks.airflow import reactions, renewals
from warmup_tasks.airflow.branches import stage
from warmup_tasks.airflow.retries import TASK_DEFAULTS
from warmup_tasks.airflow.triggers import LiveEventTrigger
from warmup_tasks.settings import load_profiles

PROFILES = load_profiles()
EVENTS = Asset("warmup_live_events", watchers=[AssetWatcher(name="live_events", trigger=LiveEventTrigger())])


def joint() -> EmptyOperator:
    """Return a group's last task, red when anything in the group is."""
    return EmptyOperator(task_id="done", trigger_rule=TriggerRule.NONE_FAILED)


@dag(
    schedule=[EVENTS],
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=TASK_DEFAULTS,
    params={
        "replicas": Param([], type="array", items={"type": "string"}, description="Empty: all that are not ready."),
        "is_surge": Param(False, type="boolean", description="Load what was asked for last; publish no new marks."),
    },
    doc_md=__doc__,
    tags=["warm-up"],
)
def reactive_warmup() -> None:
    """Warm what live events ask for."""
    weighed = reactions.weigh()
    with TaskGroup("joined"):
        chain(weighed, reactions.is_any("joined"), reactions.begin("joined"), stage(PROFILES, joint()).surveyed)
    with TaskGroup("surged"):
        loaded = reactions.loading(PROFILES, joint())
        chain(weighed, reactions.is_any("surged"), reactions.begin("surged"), renewals.read_on(), loaded.surveyed)


reactive_warmup()
