"""What is done beside the nightly run: status, events that void, the re-check before the peak, collecting what is old.

One function each, which the command line calls and nothing else: each takes the site, works through the lake and Redis,
and returns a small summary (never data, never prompts). No decision is taken here.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from warmup_tasks.errors import ConfigurationError, ContractError
from warmup_tasks.fleets import present_fleet
from warmup_tasks.settings import RunPolicy, Site

if TYPE_CHECKING:
    import redis as redis_client

    from warmup_tasks.lake import Lake
    from warmup_tasks.serving.marks import MarkAddress
    from warmup_tasks.serving.namespaces import Reach

Summary = dict[str, Any]
_SURVEYS = 20  # one may have asked a single replica


def status(site: Site) -> Summary:
    """Return what is known of every replica now: epoch, health, readiness and its reason, and its identity's evidence.

    The identity is the table of the newest evidence in the lake: field → what verifies it, and what each source says.
    """
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.epochs import EpochStore
    from warmup_tasks.serving.readiness import is_ready

    fleet = present_fleet(site)
    tables = _identity_tables(Lake(site.lake_uri), {replica.name: replica.profile for replica in fleet.replicas})
    with connect(site.redis_url) as redis:
        epochs = EpochStore(redis).read_many([replica.name for replica in fleet.replicas])
        rows = {}
        for replica, known in zip(fleet.replicas, epochs, strict=True):
            verdict = is_ready(redis, replica.model, replica.name)
            rows[replica.name] = {
                "model": replica.model,
                "profile": replica.profile,
                "epoch": known.epoch if known else None,
                "is_healthy": known.is_healthy if known else None,
                "is_ready": verdict.is_ready,
                "reason": verdict.reason,
                "identity": tables.get(replica.name, {}),
            }
    return rows


def invalidate(site: Site, reach: "Reach", *, is_dry_run: bool = False) -> Summary:
    """Void what an event makes wrong, along the edges of the graph, or only say what would fall and why (spec 2.2)."""
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.invalidate import Invalidator

    with connect(site.redis_url) as redis:
        events, dependants = Invalidator(redis), _dependants(site, reach, redis)
        return asdict(events.preview(reach, dependants) if is_dry_run else events.invalidate(reach, dependants))


def recheck(site: Site, max_prefixes: int | None = None, replicas: list[str] | None = None) -> Summary:
    """Look again at what marks say of replicas, shortly before the peak: renew what holds, void the rest.

    Live traffic is spared: what is asked for goes at a pace.
    """
    from warmup_tasks.engines.connect import open_engine
    from warmup_tasks.lake import Lake
    from warmup_tasks.serving import connect
    from warmup_tasks.validation.recheck import recheck as look_again
    from warmup_tasks.warming.paced import Pace

    lake, fleet = Lake(site.lake_uri), present_fleet(site)
    pace = Pace(RunPolicy(), _speeds(lake), open_engine)
    with connect(site.redis_url) as redis:
        look = look_again(
            lake,
            fleet,
            open_engine=pace.open_engine,
            redis=redis,
            now=_now,
            max_prefixes=max_prefixes,
            replicas=replicas or [],
        )
        return asyncio.run(look)


def recheck_profile(site: Site, profile: str, replicas: Sequence[str] = ()) -> Summary:
    """Look again at the marks on the replicas of one hardware profile; of those named, where any are."""
    fleet = present_fleet(site)
    mine = [one.name for one in fleet.replicas if one.profile == profile and (not replicas or one.name in replicas)]
    return recheck(site, replicas=mine) if mine else {}


def collect(site: Site, older_than: timedelta, *, is_dry_run: bool = False) -> Summary:
    """Remove what nobody needs any more from Redis and the lake: entries, namespaces and runs older than a time.

    Raises:
        ConfigurationError: the time is shorter than a day, which a mark or a running night may still need.
    """
    from warmup_tasks.lake import Lake
    from warmup_tasks.lake.collect import collect as collect_runs
    from warmup_tasks.serving import connect
    from warmup_tasks.serving.collect import Collector

    if older_than < timedelta(days=1):
        raise ConfigurationError("older_than: at least one day, for instance 14d; marks and running nights need theirs")
    before, lake, fleet = _now() - older_than, Lake(site.lake_uri), present_fleet(site)
    declared = {fleet.identity(model.name).digest() for model in fleet.models}
    declared |= {fleet.identity(adapter.base_model, adapter.name).digest() for adapter in fleet.adapters}
    with connect(site.redis_url) as redis:
        found = Collector(redis).collect(declared, before, is_dry_run=is_dry_run)
    return {
        **asdict(found),
        "partitions": collect_runs(lake, before, is_dry_run=is_dry_run),
        "files": 0 if is_dry_run else len(lake.collect(before)),
    }


def _dependants(site: Site, reach: "Reach", redis: "redis_client.Redis") -> "list[MarkAddress]":
    """Return the addresses of what depends on a single item, by the plans that the item's marks come from."""
    from warmup_tasks.lake import Lake
    from warmup_tasks.lake.records import read_plan
    from warmup_tasks.planning.graph import DependencyGraph, Key
    from warmup_tasks.serving.marks import MarkAddress, MarkStore

    if reach.item_id is None:
        return []
    lake, found = Lake(site.lake_uri), set()
    for run_id in sorted({mark.run_id for mark in MarkStore(redis).find(reach)}):
        try:
            rows = {Key(row.item_id, row.replica): row for row in read_plan(lake, run_id).rows if row.is_chosen}
        except ContractError:
            continue  # that run was collected: its items end by their marks
        graph = DependencyGraph(rows.values())
        for key in rows:
            if key.item_id == reach.item_id and reach.replica in (None, key.replica):
                fallen = (rows[other] for other in graph.invalidated_by(key) if other in rows)
                found |= {MarkAddress(row.tenant, row.identity_digest, row.item_id, row.replica) for row in fallen}
    return sorted(found, key=str)


def _identity_tables(lake: "Lake", profiles: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return replica → identity field → its evidence, from the newest evidence of each replica's profile."""
    tables: dict[str, dict[str, str]] = {}
    partitions = lake.partitions("evidence")
    for profile in sorted(set(profiles.values())):
        newest = max((name for name in partitions if name.endswith(f".{profile}")), default=None)
        found = lake.meta(f"evidence/{newest}").get("identity", {}) if newest else {}
        for replica, rows in found.items():
            if profiles.get(replica) == profile:
                tables[replica] = {row["field"]: _in_words(row) for row in rows}
    return tables


def _speeds(lake: "Lake") -> dict[str, float]:
    """Return replica → prefill in ms a token, by the newest survey that asked it."""
    from warmup_tasks.items import ReplicaState
    from warmup_tasks.lake.schemas import from_table

    speeds: dict[str, float] = {}
    for name in sorted(lake.partitions("replicas"))[-_SURVEYS:]:
        states = from_table(lake.read(f"replicas/{name}", "replicas"), ReplicaState)
        speeds |= {state.replica: state.prefill_ms_per_token for state in states}
    return speeds


def _in_words(row: dict[str, str | None]) -> str:
    said = [f"{source} {row[source]}" for source in ("declared", "reported", "observed") if row[source] is not None]
    return f"{row['evidence']} ({', '.join(said)})"


def _now() -> datetime:
    return datetime.now(UTC)
