"""What is renewed between two nights, as Airflow tasks; what a run then does are the steps of a night (``tasks.py``).

A body calls the library and returns a small summary. No arrows here, and no decision.
"""

from datetime import UTC, datetime

from airflow.sdk import TriggerRule, get_current_context, task

from warmup_tasks import renewal, upkeep
from warmup_tasks.airflow import context


@task
def begin(what: str) -> context.Summary:
    """Fix the run that renews ``corrected_pairs`` or ``default_responses``."""
    begin_run = {"corrected_pairs": renewal.corrected_pairs, "default_responses": renewal.default_responses}[what]
    return begin_run(context.current_site(), get_current_context()["dag_run"].run_after).model_dump(mode="json")


@task
def read_on() -> context.Summary:
    """Read what came into the site's log since."""
    return context.call(renewal.read_on)


@task
def void_outdated() -> context.Summary:
    """Void the marks of pairs that feedback corrected, before anything is written."""
    return context.call(renewal.void_outdated)


@task.short_circuit
def is_due() -> bool:
    """Stop here where no pair is to be renewed."""
    return bool(context.pull("void_outdated")["due"])


@task.short_circuit
def is_peak_near() -> bool:
    """Stop here unless the peak is near, or an operator asks."""
    current = get_current_context()
    is_by_hand = current["dag_run"].run_type == "manual"
    return is_by_hand or bool(renewal.is_peak_near(context.current_site(), datetime.now(UTC))["is_due"])


@task(trigger_rule=TriggerRule.ALL_DONE)
def recheck(name: str) -> context.Summary:
    """Look again at the marks on the replicas of one profile: of the run's, where there is a run that names some."""
    fixed = context.pull(context.FIRST_TASK)
    replicas = fixed["request"]["replicas"] if fixed else []
    return context.small(upkeep.recheck_profile(context.current_site(), name, replicas))
