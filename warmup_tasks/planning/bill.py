"""What carrying out a plan costs, before anything is warmed: tokens, seconds, bytes in Redis.

Estimates by the survey's speeds, as if requests went one after the other, so that they err on the long side; bytes as a
real Redis was seen to use them. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from warmup_tasks.items import Arm, ItemKind, PlanRow, ReplicaState
from warmup_tasks.planning.cost import request_ms
from warmup_tasks.runs import Run

Row = dict[str, Any]
MARK_BYTES = 940
VALUE_BYTES = 700
"""Key, envelope and index entry of a value; its content comes on top."""
CHARACTERS_PER_TOKEN = 5
FLOAT_BYTES = 4


def bill(run: Run, states: Sequence[ReplicaState], rows: Iterable[PlanRow], dimensions: int) -> Row:
    """Return what a plan costs.

    Args:
        run: gives the limits of validation and of answers.
        states: the survey.
        rows: of the plan; those to be warmed count.
        dimensions: of a vector of the embedder.

    Returns:
        ``replicas`` and ``stores`` (one a profile), each with ``items``, ``prefill_tokens``, ``warming_s``,
        ``validation_s`` and ``redis_bytes``; ``ready_in_s``, when the last profile would be published.
    """
    chosen = [row for row in rows if row.is_chosen and row.arm is Arm.WARM]
    replicas = {state.replica: _of_replica(run, state, chosen) for state in states}
    profiles = sorted({state.profile for state in states})
    stores = {profile: _of_store(run, profile, chosen, dimensions) for profile in profiles}
    ends = [
        stores[state.profile]["warming_s"]
        + replicas[state.replica]["warming_s"]
        + replicas[state.replica]["validation_s"]
        for state in states
    ]
    return {"replicas": replicas, "stores": stores, "ready_in_s": round(max(ends, default=0.0), 1)}


def _of_replica(run: Run, state: ReplicaState, chosen: Sequence[PlanRow]) -> Row:
    rows = [row for row in chosen if row.replica == state.replica]
    prefixes = [row for row in rows if row.kind is ItemKind.KV_PREFIX]
    twins = min(len(prefixes), run.policy.max_twins_per_replica)
    longest = sorted((row.prompt_tokens for row in prefixes), reverse=True)[:twins]
    validation_ms = sum(request_ms(state, tokens) for tokens in longest) + state.base_ms * len(prefixes)
    return {
        "items": len(rows),
        "prefill_tokens": sum(row.unique_tokens for row in prefixes),
        "warming_s": _seconds(row.expected_cost_ms for row in rows),
        "validation_s": round(validation_ms / 1000, 1),
        "redis_bytes": MARK_BYTES * len(rows),
    }


def _of_store(run: Run, profile: str, chosen: Sequence[PlanRow], dimensions: int) -> Row:
    rows = [row for row in chosen if row.replica is None and row.profile == profile]
    answer_bytes = VALUE_BYTES + run.policy.response_tokens * CHARACTERS_PER_TOKEN
    vector_bytes = VALUE_BYTES + dimensions * FLOAT_BYTES
    values = sum(vector_bytes if row.kind is ItemKind.EMBEDDING else answer_bytes for row in rows)
    return {
        "items": len(rows),
        "prefill_tokens": sum(row.unique_tokens for row in rows),
        "warming_s": _seconds(row.expected_cost_ms for row in rows),
        "validation_s": 0.0,
        "redis_bytes": values + MARK_BYTES * len(rows),
    }


def _seconds(costs_ms: Iterable[float]) -> float:
    return round(sum(costs_ms) / 1000, 1)
