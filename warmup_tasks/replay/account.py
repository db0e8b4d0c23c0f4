"""What ``warmup replay`` says of a log: its hit ratio at given capacities, what more would bring, and per router."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from warmup_tasks.errors import ConfigurationError
from warmup_tasks.lake.store import Lake
from warmup_tasks.replay.latency import LatencyModel
from warmup_tasks.replay.logs import LoggedAccesses, read_accesses
from warmup_tasks.replay.lru import TouchOrder, hit_curve
from warmup_tasks.replay.simulate import Result, Router, simulate

ENOUGH = 0.95


def replay_account(
    lake: Lake,
    capacities: Sequence[int],
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    block_tokens: int = 16,
    touch_order: TouchOrder = TouchOrder.LEADING_FIRST,
    replicas: int = 1,
) -> dict[str, Any]:
    """Return the account of a log as JSON values, no prompts.

    ``hit_ratio`` maps each capacity in blocks, as text, to the prefix-run hit ratio of one cache for all requests;
    ``hit_ratio_endless`` is that of a cache without limit; ``enough_blocks`` holds 95 % of it. ``latency`` is the line
    that the log's own times to first token lie on, null where it has too few. ``routers``, with several replicas, maps
    router → capacity *of each replica* → hit ratio; with a latency line also load and P95 of the time to first token.

    Args:
        lake: holds ``requests/<day>``.
        capacities: in blocks.
        since: UTC; None: from the first request.
        until: UTC; None: to the last.
        block_tokens: for prompts; block hashes bring their own.
        touch_order: see ``replay/lru.py``.
        replicas: how many share the traffic.

    Raises:
        ConfigurationError: a capacity below 0, or no request whose blocks can be told.
    """
    if any(capacity < 0 for capacity in capacities):
        raise ConfigurationError("capacity: must be 0 or more blocks, such as 1000,10000")
    logged = read_accesses(lake, since=since, until=until, block_tokens=block_tokens)
    accesses, latency = logged.accesses, _latency(logged)
    curve = hit_curve(accesses, touch_order=touch_order)
    account: dict[str, Any] = {
        "requests": len(accesses),
        "requests_left_out": logged.requests_left_out,
        "basis": logged.basis.value,
        "block_tokens": accesses.block_tokens,
        "asked_blocks": curve.asked_blocks,
        "distinct_blocks": accesses.blocks,
        "hit_ratio": {str(capacity): curve.hit_ratio(capacity) for capacity in dict.fromkeys(capacities)},
        "hit_ratio_endless": curve.hit_ratio(),
        "enough_blocks": curve.capacity_for(ENOUGH),
        "latency": None if latency is None else _line(latency),
    }
    if replicas > 1:
        account["routers"] = {
            router.value: {
                str(capacity): _figures(
                    simulate(
                        accesses,
                        capacity,
                        replicas=replicas,
                        router=router,
                        latency=latency,
                        touch_order=touch_order,
                    ),
                    has_latency=latency is not None,
                )
                for capacity in dict.fromkeys(capacities)
            }
            for router in Router
        }
    return account


def _latency(logged: LoggedAccesses) -> LatencyModel | None:
    tokens = logged.accesses.prompt_tokens.astype(float)
    try:
        return LatencyModel.fitted(tokens, logged.cached_tokens, logged.ttft_ms)
    except ConfigurationError:
        return None


def _line(latency: LatencyModel) -> dict[str, float | int | None]:
    return {
        "base_ms": latency.base_ms,
        "ms_per_token": latency.ms_per_token,
        "rows": latency.rows,
        "median_error_ms": latency.median_error_ms,
    }


def _figures(result: Result, *, has_latency: bool) -> dict[str, float | None]:
    figures: dict[str, float | None] = {"hit_ratio": result.hit_ratio}
    if has_latency:
        figures |= {"ttft_p95_ms": result.ttft_quantile_ms(0.95), "load_share": result.load_share}
    return figures
