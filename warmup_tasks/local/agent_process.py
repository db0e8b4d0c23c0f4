"""The agent of a local site as a process of its own. How it watches lies in ``agent/``."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.local import processes
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.settings import Site

AGENT_DEADLINE_S = 60.0


def start_agent(
    site: Site, found: FleetFile, log_path: Path, stack: ExitStack | None = None, port: int = 0
) -> processes.Process:
    """Start the agent of a site and wait until every replica's epoch is published.

    Args:
        site: whose fleet it watches.
        found: the fleet.
        log_path: of its output.
        stack: ends it; None leaves that to the caller.
        port: that it answers on; 0 takes a free one.

    Raises:
        GiveUpError: it ended, or a replica's epoch is still unknown after a while.
    """
    command = [sys.executable, "-m", "warmup_tasks.agent", "--port", str(port or processes.free_port())]
    agent = processes.start("the agent", command, log_path, {**os.environ, **site.to_environment()}, append=True)
    if stack is not None:
        stack.enter_context(agent)
    with connect(site.redis_url) as client:
        epochs, names = EpochStore(client), [replica.name for replica in found.replicas]
        agent.wait_until(lambda: all(epochs.read_many(names)), AGENT_DEADLINE_S)
    return agent
