"""How many replicas behind a shared address are ready: a balancing address is as warm as the replica that it meets."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import redis

from warmup_tasks.serving.readiness import is_ready


class Coverage(NamedTuple):
    """``ready`` of ``replicas`` are ready for a model; ``missing`` says of each other one why it is not."""

    ready: int
    replicas: int
    missing: dict[str, str]

    def __str__(self) -> str:
        return f"{self.ready} of {self.replicas} replicas ready"


def coverage(client: redis.Redis, model: str, replicas: Sequence[str], *, now: datetime | None = None) -> Coverage:
    """Return the coverage of a model over the replicas that serve it.

    Args:
        client: of the store.
        model: served name of the base model.
        replicas: names in the fleet, each once.
        now: the wall clock's time; None reads the clock.

    Raises:
        RetryLaterError: Redis is away.
    """
    verdicts = {replica: is_ready(client, model, replica, now=now) for replica in replicas}
    missing = {replica: verdict.reason for replica, verdict in verdicts.items() if not verdict.is_ready}
    return Coverage(len(verdicts) - len(missing), len(verdicts), missing)
