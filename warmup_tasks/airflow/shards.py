"""What the DAG maps over: shard ids out of the plan's summary, checked before anything is expanded.

A task maps over shards, never over items, so the number of tasks follows from the fleet alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from warmup_tasks.errors import ConfigurationError, ContractError

MAX_SHARDS_PER_WAVE = 1024
"""Airflow's ``max_map_length``: beyond it the task that pushes the list fails, with a message about Airflow only."""


def group_ids(profiles: Iterable[str]) -> dict[str, str]:
    """Return profile → task group id: dots, which Airflow keeps for nesting, become ``_``.

    Raises:
        ConfigurationError: two profiles would share a group.
    """
    groups = {profile: profile.replace(".", "_") for profile in profiles}
    if len(set(groups.values())) != len(groups):
        raise ConfigurationError(f"profiles file: names must differ in more than '.' and '_', got {', '.join(groups)}")
    return groups


def check_shards(summary: dict[str, Any], profiles: Iterable[str]) -> dict[str, Any]:
    """Return the plan's summary if the DAG can carry it out.

    Args:
        summary: of the plan step; ``shards`` maps profile → wave (as text) → shard ids.
        profiles: the hardware profiles that the DAG has a branch for.

    Raises:
        ConfigurationError: the plan names a profile without a branch, or too many shards for one wave.
        ContractError: a shard id is not a text.
    """
    known = set(profiles)
    for profile, waves in summary["shards"].items():
        if profile not in known:
            raise ConfigurationError(
                f"profile {profile!r} has no branch in this DAG (it has {', '.join(sorted(known))}): add it to the "
                "profiles file that the DAG processor reads, and run again once the DAG is parsed anew"
            )
        for wave, shards in waves.items():
            if not all(isinstance(shard, str) for shard in shards):
                raise ContractError(f"profile {profile!r}, wave {wave}: a shard id must be a text")
            if len(shards) > MAX_SHARDS_PER_WAVE:
                raise ConfigurationError(
                    f"profile {profile!r} has {len(shards)} shards in wave {wave}, more than Airflow's limit of "
                    f"{MAX_SHARDS_PER_WAVE}: split the profile in two"
                )
    return summary


def shards_of(summary: Mapping[str, Any], profile: str, wave: int) -> list[str]:
    """Return the shard ids of one profile and wave; empty where the plan has none."""
    return list(summary["shards"].get(profile, {}).get(str(wave), []))
