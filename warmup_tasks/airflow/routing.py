"""Where a hardware profile's tasks run: their queue, their pod template, and whether anybody serves the queue.

The executor is configuration: Celery reads the queue, Kubernetes the pod template, and neither minds what the other
reads. Only Celery can lack a worker: other executors start what a task needs.
"""

import time
from collections.abc import Callable
from typing import Any

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.settings import HardwareProfile

ASK_S = 1.0
DEADLINE_S = 15.0
"""A worker under load answers late; one that is not there never does."""

Ask = Callable[[float], set[str]]
"""Returns the queues of the workers that answered within so many seconds."""


def route(hardware: HardwareProfile) -> dict[str, Any]:
    """Return what a task of this profile overrides: ``queue`` and, where the profile has a pod template, that."""
    if hardware.pod_template is None:
        return {"queue": hardware.queue}
    return {"queue": hardware.queue, "executor_config": {"pod_template_file": hardware.pod_template}}


def check_worker(profile: str, queue: str, ask: Ask | None = None, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """Return who serves a profile's queue, or say that nobody does.

    Args:
        profile: the hardware profile.
        queue: its queue.
        ask: how workers are asked; None asks over the broker where Celery executes, and nobody elsewhere.
        deadline_s: how long to ask before nobody counts as there.

    Raises:
        ConfigurationError: no worker serves the queue.
    """
    if ask is None:
        if not _is_celery():
            return {"queue": queue, "is_served": True, "how": "the executor starts what a task needs"}
        ask = _celery_queues
    give_up_at, seen = time.monotonic() + deadline_s, set[str]()
    while time.monotonic() < give_up_at:
        seen |= ask(ASK_S)
        if queue in seen:
            return {"queue": queue, "is_served": True, "how": "a worker answered"}
    raise ConfigurationError(
        f"hardware profile {profile!r}: no worker serves its queue {queue!r} "
        f"(served: {', '.join(sorted(seen)) or 'none'}); start one: airflow celery worker --queues {queue}"
    )


def _is_celery() -> bool:
    from airflow.configuration import conf

    executor: str = conf.get("core", "executor").split(",")[0].rpartition(":")[2]
    return executor.rpartition(".")[2] == "CeleryExecutor"


def _celery_queues(timeout_s: float) -> set[str]:
    from airflow.providers.celery.executors.celery_executor_utils import app
    from kombu.exceptions import OperationalError

    try:
        answers = app.control.inspect(timeout=timeout_s).active_queues() or {}
    except OperationalError:
        return set()
    return {queue["name"] for queues in answers.values() for queue in queues}
