"""Is it one engine process that answers behind an address? Two caches behind one name cannot be warmed or proved.

A balancer deals connections, so every look opens one of its own. What a process is told apart by is its start time.
"""

from collections.abc import Callable
from itertools import pairwise

from warmup_tasks.engines.base import Engine
from warmup_tasks.errors import GiveUpError
from warmup_tasks.fleet_file import ReplicaSpec

LOOKS = 6  # two processes dealt by lot are missed once in 32 surveys, dealt in turn never


async def check_one_process(
    open_engine: Callable[[ReplicaSpec], Engine], replica: ReplicaSpec, *, deadline_s: float, looks: int = LOOKS
) -> None:
    """Look several times, each over a connection of its own; return when the same process answered each time.

    Two start times that rise once are a restart; a third look at the older one is what tells several processes.

    Raises:
        GiveUpError: several engine processes answer.
        RetryLaterError: the replica does not answer.
    """
    starts: list[float] = []
    for _ in range(looks):
        async with open_engine(replica) as engine:
            starts.append((await engine.metrics(deadline_s=deadline_s)).process_start_s)
    if any(later < earlier for earlier, later in pairwise(starts)):
        raise GiveUpError(
            f"{len(set(starts))} engine processes answer behind {replica.url} in turn: each has a cache of its own, "
            "so name each by an address of its own in the fleet file"
        )
