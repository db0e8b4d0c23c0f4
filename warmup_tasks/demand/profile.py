"""The profile step: requests before as_of in, one ``demand/<run_id>`` partition out.

Here the parts of the room are called in order and their rows become tables. Each rule lives in the module that names
it.
"""

from datetime import timedelta
from math import lcm
from typing import Any

import pyarrow as pa

from warmup_tasks.deadlines import peak_of
from warmup_tasks.demand import tables
from warmup_tasks.demand.answers import frequent_questions, repeated_prompts, used_adapters
from warmup_tasks.demand.asked import GENERATING, Asked, judge, read_asked
from warmup_tasks.demand.embedder import HashingEmbedder
from warmup_tasks.demand.forecast import choose_policies
from warmup_tasks.demand.forest import Forest
from warmup_tasks.demand.heat import WINDOW_S, HeatMap, bucket_of, heat_map
from warmup_tasks.demand.prefix_tree import PrefixTree
from warmup_tasks.demand.reuse_forecast import forecast_reuse
from warmup_tasks.demand.tokens import Progress, Tokenize, TokenTable, identity_of, tokens_of
from warmup_tasks.demand.window import Window, read_feedback, read_window
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.items import Reason, ReplicaState
from warmup_tasks.lake.store import Lake
from warmup_tasks.resources import sql
from warmup_tasks.runs import Run

Row = dict[str, Any]
_BACKTEST_SHARE = 0.25
_LEAST_HISTORY_S = 60.0
_STABLE_PART = (None, Reason.VOLATILE_HEAD, Reason.STALE_DATE)


def profile(
    lake: Lake,
    run: Run,
    fleet: FleetFile,
    replicas: list[ReplicaState],
    tokenize: Tokenize,
    *,
    progress: Progress | None = None,
) -> tuple[str, Row]:
    """Publish what was asked for in the lookback, and what that lets expect in the horizon.

    Args:
        lake: holds ``requests`` and ``feedback``; ``tokens`` and ``demand`` are written.
        run: as_of, lookback, filters, parameters.
        fleet: models, adapters, tenants' salts.
        replicas: the survey; block size, longest prompt and identity come from it.
        tokenize: asks an engine; one answer a prompt, in order, a ``RejectItemError`` where it refuses.
        progress: called with (done, total) prompts while tokenising.

    Returns:
        The reference of ``demand/<run_id>`` (tables of ``demand/tables.py`` and the heat map) and a small summary.

    Raises:
        ConfigurationError: no replica, or a cache granularity that is no multiple of the block size.
    """
    states = [state for state in replicas if not run.request.replicas or state.replica in run.request.replicas]
    if not states:
        raise ConfigurationError("replicas: none of those asked for answered the survey")
    steps = _step_tokens(states, run)
    window = read_window(lake, run, fleet)
    rows = lake.query(sql("demand/sequences"), {"requests_window": window.requests}, _forecast_parameters(run, window))
    every = read_asked(rows.to_pylist())
    prompts = [asked for asked in every if asked.model in steps and asked.body_json and asked.prompt_sha256]
    generating = [asked for asked in prompts if asked.request_type in GENERATING]
    tokenised = _tokenise(lake, run, generating, states, tokenize, progress)
    max_lengths = {model: min(s.max_model_len for s in states if s.model == model) for model in steps}
    judge(generating, fleet, run, max_lengths, steps)
    trees = {model: _tree(prompts, model, steps[model]) for model in sorted(steps)}
    policies = choose_policies(prompts, trees, run.parameters.prefetch_strategy)
    reuse, reuse_account = forecast_reuse(run, window, states, prompts, trees, steps)
    forest = Forest(run, prompts, trees, steps, reuse)
    parameters, min_uses = run.parameters, run.policy.min_uses
    limits = {"min_uses": min_uses, "top_k": parameters.top_k}
    questions = frequent_questions(
        prompts,
        read_feedback(lake, run),
        HashingEmbedder(),
        similarity_threshold=parameters.similarity_threshold,
        **limits,
    )
    heat = _heat(lake, run, window, prompts)
    refused, refused_counts = _refused(generating, parameters.top_k)
    published = {
        "nodes": pa.Table.from_pylist(forest.nodes, schema=tables.NODES),
        "paths": pa.Table.from_pylist(forest.paths, schema=tables.PATHS),
        "reuse": pa.Table.from_pylist(forest.reuse, schema=tables.REUSE),
        "prompts": pa.Table.from_pylist(repeated_prompts(prompts, **limits), schema=tables.PROMPTS),
        "intents": pa.Table.from_pylist(questions, schema=tables.INTENTS),
        "adapters": pa.Table.from_pylist(used_adapters(prompts, fleet), schema=tables.ADAPTERS),
        "refused": pa.Table.from_pylist(refused, schema=tables.REFUSED),
        "heat_cells": heat.cells,
        "heat_buckets": heat.buckets,
        "heat_moments": heat.moments,
    }
    summary: Row = {
        "schema_version": tables.DEMAND_SCHEMA,
        "lookback_s": run.policy.lookback_s,
        "peak_at": _peak_at(window, run),
        "requests": window.requests.num_rows,
        "not_served": window.not_served,
        "without_content": sum(a.uses for a in every if not (a.body_json and a.prompt_sha256)),
        "without_replica": sum(a.uses for a in every if a.model not in steps),
        "distinct_prompts": len(prompts),
        "span_s": window.span_s,
        "step_tokens": steps,
        "policies": [policy._asdict() for policy in policies],
        "reuse": reuse_account,
        "nodes_dropped": dict(forest.dropped),
        "refused": refused_counts,
        **{name: published[name].num_rows for name in ("nodes", "prompts", "intents", "adapters")},
    }
    ref = lake.publish("demand", run.run_id, published, summary)
    asked, reused = sum(t.asked for t in tokenised), sum(t.reused for t in tokenised)
    return ref, {**summary, "tokenised": asked, "tokens_reused": reused}


def _peak_at(window: Window, run: Run) -> str | None:
    import pyarrow.compute as pc

    counted = pc.value_counts(pc.floor_temporal(window.requests["time"], unit="hour")).to_pylist()
    found = peak_of({row["values"]: row["counts"] for row in counted}, run.as_of, run.policy.horizon_s)
    return found.isoformat() if found else None


def _step_tokens(states: list[ReplicaState], run: Run) -> dict[str, int]:
    steps = {}
    for model in sorted({state.model for state in states}):
        blocks = lcm(*(state.block_size for state in states if state.model == model))
        step = run.parameters.cache_granularity_tokens or blocks
        if step % blocks:
            raise ConfigurationError(
                f"cache_granularity_tokens: {step} is no multiple of {blocks}, the block size of {model}'s replicas"
            )
        steps[model] = step
    return steps


def _forecast_parameters(run: Run, window: Window) -> Row:
    horizon_s = float(run.policy.horizon_s)
    return {
        "as_of": run.as_of,
        "span_s": window.span_s,
        "horizon_s": horizon_s,
        "observed_s": max(_LEAST_HISTORY_S, window.observed_s),
        "backtest_s": min(horizon_s, max(_LEAST_HISTORY_S, window.observed_s) * _BACKTEST_SHARE),
        "window_s": WINDOW_S,
        "tau_fast_s": run.parameters.heat_tau_fast_s,
        "tau_slow_s": run.parameters.heat_tau_slow_s,
    }


def _tokenise(
    lake: Lake,
    run: Run,
    prompts: list[Asked],
    states: list[ReplicaState],
    tokenize: Tokenize,
    progress: Progress | None,
) -> list[TokenTable]:
    results = []
    for model in sorted({asked.model for asked in prompts}):
        own = [asked for asked in prompts if asked.model == model and not asked.is_truncated]
        bodies = {asked.body_sha256 or "": (asked.body_json or "", asked.last_seen) for asked in reversed(own)}
        for asked in own:
            sha = asked.body_sha256 or ""
            bodies[sha] = (bodies[sha][0], max(bodies[sha][1], asked.last_seen))
        result = tokens_of(
            lake,
            model,
            identity_of(model, states),
            bodies,
            tokenize,
            keep_since=run.as_of - timedelta(seconds=run.policy.lookback_s),
            progress=progress,
        )
        for asked in own:
            sha = asked.body_sha256 or ""
            asked.token_ids = result.token_ids.get(sha, asked.token_ids)
            asked.reason = result.refused.get(sha)
        results.append(result)
    return results


def _tree(prompts: list[Asked], model: str, step_tokens: int) -> tuple[PrefixTree, list[int]]:
    indices = [
        index
        for index, asked in enumerate(prompts)
        if asked.model == model and asked.reason in _STABLE_PART and asked.stable_tokens
    ]
    return PrefixTree.build([prompts[index].sequence(step_tokens) for index in indices]), indices


def _heat(lake: Lake, run: Run, window: Window, prompts: list[Asked]) -> HeatMap:
    keys = ("body_sha256", "tenant", "model", "adapter", "cache_salt")
    shared = {tuple(getattr(a, key) for key in keys): a.shared_prefix for a in prompts}
    columns = window.requests.select([*keys, "prompt_sha256", "first_block_hash"]).to_pydict()
    buckets = []
    for row in zip(*columns.values(), strict=True):
        prompt, first_block = row[5], row[6]
        label = shared.get(row[:5]) or (str(first_block) if first_block is not None else prompt) or f"{row[2]} {row[1]}"
        buckets.append(bucket_of(label))
    events = pa.table({"time": window.requests["time"], "bucket": pa.array(buckets, pa.int32())})
    return heat_map(
        lake,
        events,
        run.as_of,
        lookback_s=run.policy.lookback_s,
        tau_fast_s=run.parameters.heat_tau_fast_s,
        tau_slow_s=run.parameters.heat_tau_slow_s,
    )


def _refused(prompts: list[Asked], top_k: int) -> tuple[list[Row], dict[str, dict[str, int]]]:
    by_reason: dict[str, list[Asked]] = {}
    for asked in prompts:
        if asked.reason is not None:
            by_reason.setdefault(str(asked.reason), []).append(asked)
    rows, counts = [], {}
    for reason, refused in sorted(by_reason.items()):
        refused.sort(
            key=lambda a: (-a.uses, a.prompt_sha256 or "", a.tenant or "", a.adapter or "", a.cache_salt or "")
        )
        counts[reason] = {"prompts": len(refused), "requests": sum(a.uses for a in refused)}
        names = [name for name in tables.REFUSED.names if name != "reason"]
        rows += [{name: getattr(a, name) for name in names} | {"reason": reason} for a in refused[:top_k]]
    return rows, counts
