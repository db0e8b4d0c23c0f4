"""The measured replay: the first requests after as_of, sent again to one profile's replicas, cold or warm.

Each request goes out exactly as it was logged, with one token to generate; hit ratios count whole blocks (spec 0). The
cold arm lives behind fresh salts, a world of its own that starts empty and may reuse what it computed itself; the warm
arm uses the salts of live requests. What the figures mean is said in ``reporting/``.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from warmup_tasks.engines.attempts import generate, scrape
from warmup_tasks.engines.base import Engine, GenerationRequest
from warmup_tasks.engines.canary import unused_label
from warmup_tasks.errors import ConfigurationError, RejectItemError, RetryLaterError
from warmup_tasks.fleet_file import FleetFile, ReplicaSpec
from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody, Reason, ReplayRow
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.resources import sql
from warmup_tasks.runs import Run
from warmup_tasks.serving.replica_turns import ReplicaTurns

ARMS = ("cold", "warm")
OpenEngine = Callable[[ReplicaSpec], Engine]
Logged = dict[str, Any]
_log = logging.getLogger(__name__)


async def replay(
    lake: Lake,
    run: Run,
    profile: str,
    arm: str,
    fleet: FleetFile,
    *,
    open_engine: OpenEngine,
    turns: ReplicaTurns,
) -> tuple[str, dict[str, Any]]:
    """Replay the requests of [as_of, as_of + measure_window_s) and publish ``replay/<run_id>.<profile>.<arm>``.

    Sessions are dealt over the profile's replicas by a hash, so both arms send a request to the same replica; each
    replica gets its requests one after another.

    Args:
        lake: holds ``requests/<day>``.
        run: gives window, filters and deadline; a window of 0 s publishes an empty table at once.
        profile: hardware profile.
        arm: ``cold`` or ``warm``.
        fleet: the fleet file.
        open_engine: opens a replica.
        turns: no other task works on a replica while it is replayed to.

    Returns:
        The reference and a summary: requests sent, not sent, failed, and the tokens that engines computed.

    Raises:
        ConfigurationError: ``arm`` has another name.
        RetryLaterError: none of the profile's replicas answered any request, or others work on one for too long.
    """
    if arm not in ARMS:
        raise ConfigurationError(f"arm: {arm!r} is neither 'cold' nor 'warm'")
    logged = _requests(lake, run)
    replicas = _replicas(run, fleet, profile)
    dealt = _deal(logged, replicas, run, fleet)

    async def one(replica: ReplicaSpec) -> list[ReplayRow]:
        async with turns.on(replica.turn):
            return await _on_replica(replica, dealt[replica.name], run, fleet, arm, open_engine)

    parts = await asyncio.gather(*(one(replica) for replica in replicas if replica.name in dealt))
    rows = sorted((row for part in parts for row in part), key=lambda row: (row.replica, row.request_id))
    if rows and all(row.error == Reason.ENGINE_UNAVAILABLE for row in rows):
        raise RetryLaterError(f"no replica of profile {profile!r} answered")
    ref = lake.publish("replay", f"{run.run_id}.{profile}.{arm}", {"replay": to_table(rows, ReplayRow)})
    return ref, _summary(rows, len(logged))


def _requests(lake: Lake, run: Run) -> list[Logged]:
    if run.request.measure_window_s == 0:
        return []
    until = run.as_of + timedelta(seconds=run.request.measure_window_s)
    days = [day for day in _days(run.as_of, until) if lake.latest("requests", day) is not None]
    if not days:
        return []
    refs = [f"requests/{day}:requests" for day in days]
    found = lake.query(sql("replay/window"), {"requests": refs}, {"from": run.as_of, "until": until})
    return list(found.to_pylist())


def _days(start: datetime, until: datetime) -> list[str]:
    count = (until.date() - start.date()).days + 1
    return [(start.date() + timedelta(days=offset)).isoformat() for offset in range(count)]


def _replicas(run: Run, fleet: FleetFile, profile: str) -> list[ReplicaSpec]:
    wanted = set(run.request.replicas)
    return [r for r in fleet.replicas if r.profile == profile and (not wanted or r.name in wanted)]


def _deal(
    logged: Sequence[Logged], replicas: Sequence[ReplicaSpec], run: Run, fleet: FleetFile
) -> dict[str, list[Logged]]:
    """Return replica name → its requests in their order; model and adapter under the fleet's names from here on."""
    dealt: dict[str, list[Logged]] = defaultdict(list)
    for row in logged:
        model, adapter = fleet.served(row["model"], row["adapter"]) or (None, None)
        serving = [replica for replica in replicas if replica.model == model]
        if not serving or not _is_asked_for(row["tenant"], model, run):
            continue
        place = int(digest({"session": row["session_id"] or row["request_id"]})[:8], 16) % len(serving)
        dealt[serving[place].name].append({**row, "model": model, "adapter": adapter})
    return dealt


def _is_asked_for(tenant: str | None, model: str | None, run: Run) -> bool:
    return (not run.request.models or model in run.request.models) and (
        not run.request.tenants or tenant in run.request.tenants
    )


async def _on_replica(
    replica: ReplicaSpec,
    logged: Sequence[Logged],
    run: Run,
    fleet: FleetFile,
    arm: str,
    open_engine: OpenEngine,
) -> list[ReplayRow]:
    rows = []
    deadline_s = run.policy.request_deadline_s
    async with open_engine(replica) as engine:
        try:
            seen = await scrape(engine, deadline_s=deadline_s)
        except RetryLaterError:
            return [_row(run, replica, arm, row, error=Reason.ENGINE_UNAVAILABLE) for row in logged]
        world = f"replay:{run.run_id}:{unused_label(seen)}" if arm == "cold" else None
        for row in logged:
            try:
                request = _request(row, fleet, world)
                answer = await generate(engine, request, deadline_s=deadline_s)
            except RejectItemError as error:
                rows.append(_row(run, replica, arm, row, error=error.reason))
            except RetryLaterError:
                rows.append(_row(run, replica, arm, row, error=Reason.ENGINE_UNAVAILABLE))
            else:
                rows.append(
                    _row(
                        run,
                        replica,
                        arm,
                        row,
                        prompt_tokens=answer.prompt_tokens,
                        cached_tokens=answer.cached_tokens,
                        full_blocks=_blocks(answer.prompt_tokens, seen.block_size),
                        hit_blocks=_blocks(answer.cached_tokens, seen.block_size),
                        ttft_ms=answer.ttft_ms,
                    )
                )
    return rows


def _request(row: Logged, fleet: FleetFile, world: str | None) -> GenerationRequest:
    """Return the logged request with one token to generate.

    Raises:
        RejectItemError: the log names an adapter that the fleet does not have, so its live salt cannot be told.
    """
    model, adapter = row["model"], row["adapter"]
    if adapter is not None and fleet.adapter(adapter) is None:
        raise RejectItemError(Reason.ADAPTER_UNKNOWN, f"adapter {adapter!r} is not in the fleet")
    identity = fleet.identity(model, adapter)
    salt = fleet.live_salt(row["tenant"], row["cache_salt"], identity.digest()) or row["cache_salt"]
    if world is not None:
        salt = digest({"world": world, "live_salt": salt})
    body = PromptBody.model_validate_json(row["body_json"])
    return GenerationRequest(body, adapter or model, max_tokens=1, cache_salt=salt)


def _row(run: Run, replica: ReplicaSpec, arm: str, row: Logged, **measured: Any) -> ReplayRow:
    nothing = dict.fromkeys(("prompt_tokens", "cached_tokens", "full_blocks", "hit_blocks", "ttft_ms", "error"))
    return ReplayRow(
        run_id=run.run_id,
        profile=replica.profile,
        replica=replica.name,
        arm=arm,
        request_id=row["request_id"],
        **{**nothing, **measured},
    )


def _blocks(tokens: int | None, block_size: int) -> int | None:
    return None if tokens is None else tokens // block_size


def _summary(rows: Sequence[ReplayRow], n_logged: int) -> dict[str, Any]:
    told = [row for row in rows if row.hit_blocks is not None and row.full_blocks is not None]
    return {
        "requests": len(rows),
        "not_sent": n_logged - len(rows),
        "errors": dict(Counter(row.error for row in rows if row.error is not None)),
        "full_blocks": sum(row.full_blocks or 0 for row in told),
        "hit_blocks": sum(row.hit_blocks or 0 for row in told),
        "computed_tokens": sum((row.prompt_tokens or 0) - (row.cached_tokens or 0) for row in rows),
    }
