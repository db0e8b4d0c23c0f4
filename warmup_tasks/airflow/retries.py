"""Error class → Airflow's behaviour after a failure: the only place that says so.

An error that asks somebody to change something fails the task at once; everything else, an error of an unknown class
included, is tried again with growing pauses. The error itself stays as it was raised, message and class.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from warmup_tasks.errors import GiveUpError, RejectItemError, RetryLaterError

RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(GiveUpError, RetryAction.FAIL, reason="somebody has to change something: see the message"),
        RetryRule(RejectItemError, RetryAction.FAIL, reason="one item was rejected, yet its step did not record it"),
        RetryRule(RetryLaterError, RetryAction.DEFAULT, reason="the same call may succeed later"),
    ],
    default=RetryAction.DEFAULT,
)
"""``DEFAULT`` leaves the pause to :data:`TASK_DEFAULTS`; ``FAIL`` skips the remaining tries."""

TASK_DEFAULTS: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
    "retry_policy": RETRY_POLICY,
}
"""``default_args`` of every DAG: a first pause of 30 to 60 s, then twice as long."""
