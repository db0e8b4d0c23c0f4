"""Opens the engine of a replica: the one place that knows which implementation speaks to it."""

from warmup_tasks.engines.base import Engine
from warmup_tasks.engines.vllm import VllmEngine
from warmup_tasks.fleet_file import ReplicaSpec


def open_engine(replica: ReplicaSpec) -> Engine:
    """Return the engine behind a replica's address; use it as an asynchronous context manager.

    Raises:
        ConfigurationError: the variable that ``api_key_env`` names is not set.
    """
    return VllmEngine(replica)
