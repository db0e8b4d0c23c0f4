"""Cold, static and dynamic warming at one token budget, on a real engine, in one run (spec 4.2).

Real agent prompts are split at half of each log's time. Before every arm the cache is emptied as a restart empties it;
the two warm arms then warm what the real plan chose from the first half. Then the second half comes, eight requests
under way, each as soon as another is done, for the first 60 s (``--scale`` shrinks that). Arms take turns.

Warming costs the same prefill that it saves, only earlier. So the gain stands twice: as live traffic sees it, and
*charged*, with the seconds of warming counted into the arm's time. Charged, no warm-up can win here: a closed loop
keeps the engine busy from the first second, and a block is computed once either way, before the traffic or by its
first request. Beside the arms stands what the workload allows: the share of blocks that were seen before the split at
all, and what a plan of the same budget that knew the requests of the window would reach, uncharged and charged.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import agent_traffic, harness
from tests.benchmarks.agent_traffic import DEADLINE_S, MODEL, Bench, Logged, Planned, best_set, blocks_of
from warmup_tasks.engines.attempts import generate
from warmup_tasks.engines.base import GenerationRequest
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.items import PromptBody
from warmup_tasks.local.vllm_cpu import BLOCK_SIZE
from warmup_tasks.parameters import GoldenParameters, PrefetchStrategy

NEEDS = "vllm"
"""Measured on the real engine alone."""

HIDDEN, LAYERS = 512, 8
CAPACITY_TOKENS, MAX_PROMPT_TOKENS = 98_304, 4_000
CONCURRENCY, ANSWER_TOKENS = 8, 8
WINDOW_S = 60.0
ROUNDS = 2
WARM_ARMS = ("static", "dynamic")


@dataclass(frozen=True, slots=True)
class Served:
    """One request of an arm: its place in the log, its prompt and cached tokens, and how much fell into the window."""

    place: int
    prompt_tokens: int
    cached_tokens: int
    ttft_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class Round:
    """One arm, once."""

    warming_s: float
    warming_tokens: int
    window_s: float
    served: list[Served]

    @property
    def tokens(self) -> float:
        """Prompt tokens served within the window; a request under way at its end counts in part."""
        return sum(one.prompt_tokens * one.share for one in self.served)


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Measure."""
    window_s = max(5.0, WINDOW_S * scale)
    with agent_traffic.real_engine(out, HIDDEN, LAYERS, capacity_tokens=CAPACITY_TOKENS) as bench:
        log = agent_traffic.read_log(bench, agent_traffic.data_folder(), MAX_PROMPT_TOKENS)
        future = [row for row in log if row.at_s >= 0]
        plans = {arm: bench.plan(arm, log, _parameters(arm)) for arm in WARM_ARMS}
        rounds: dict[str, list[Round]] = {arm: [] for arm in ("cold", *WARM_ARMS)}
        for turn in range(ROUNDS):
            for arm in sorted(rounds, reverse=bool(turn % 2)):
                rounds[arm].append(_one(bench, plans.get(arm), future, window_s))
        capacity = asyncio.run(bench.metrics()).capacity_blocks - 1
    return _result(rounds, plans, log, future, capacity)


def _parameters(arm: str) -> GoldenParameters:
    return GoldenParameters(
        concurrency=CONCURRENCY,
        top_k=5000,
        prefetch_strategy=PrefetchStrategy(arm),
    )


def _one(bench: Bench, plan: Planned | None, future: Sequence[Logged], window_s: float) -> Round:
    bench.empty()
    begun, warmed = time.perf_counter(), 0
    if plan is not None:
        warmed = int(plan.warm()["computed_tokens"])
    warming_s = time.perf_counter() - begun if plan is not None else 0.0
    return Round(warming_s, warmed, window_s, asyncio.run(_serve(bench, future, window_s)))


async def _serve(bench: Bench, future: Sequence[Logged], window_s: float) -> list[Served]:
    """Send requests in the order of the log, eight under way, until the window is over."""
    todo = iter(enumerate(future))
    served: list[Served] = []
    end = time.perf_counter() + window_s
    async with open_engine(bench.fleet.replicas[0]) as engine:

        async def worker() -> None:
            for place, row in todo:
                begun = time.perf_counter()
                if begun >= end:
                    return
                request = GenerationRequest(PromptBody(prompt=row.text), MODEL, max_tokens=ANSWER_TOKENS)
                answer = await generate(engine, request, deadline_s=DEADLINE_S)
                done = time.perf_counter()
                share = min(1.0, (end - begun) / (done - begun))
                tokens, cached = answer.prompt_tokens or 0, answer.cached_tokens or 0
                served.append(Served(place, tokens, cached, answer.ttft_ms, share))

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
    return served


def _result(
    rounds: dict[str, list[Round]],
    plans: dict[str, Planned],
    log: Sequence[Logged],
    future: Sequence[Logged],
    capacity: int,
) -> harness.BenchResult:
    rates = {arm: sum(r.tokens for r in every) / sum(r.window_s for r in every) for arm, every in rounds.items()}
    charged = {
        arm: sum(r.tokens for r in every) / sum(r.window_s + r.warming_s for r in every)
        for arm, every in rounds.items()
    }
    seen = max(len(r.served) for every in rounds.values() for r in every)
    ideal = _ideal(log, future[:seen], plans, capacity)
    headline = {
        "throughput_gain_dynamic": rates["dynamic"] / rates["cold"] - 1,
        "throughput_gain_static": rates["static"] / rates["cold"] - 1,
        "throughput_gain_dynamic_charged": charged["dynamic"] / charged["cold"] - 1,
        "throughput_gain_static_charged": charged["static"] / charged["cold"] - 1,
        "prefill_saved_dynamic": _prefill_saved(rounds["cold"], rounds["dynamic"]),
        "prefill_saved_static": _prefill_saved(rounds["cold"], rounds["static"]),
        "block_reuse_dynamic": _reuse(rounds["dynamic"]),
        "block_reuse_static": _reuse(rounds["static"]),
        "block_reuse_cold": _reuse(rounds["cold"]),
        "block_reuse_ideal": ideal["block_reuse_knew_the_window"],
        "throughput_gain_ideal": ideal["throughput_gain_bound_knew_the_window"],
        "throughput_gain_ideal_charged": ideal["throughput_gain_charged_bound_knew_the_window"],
        "ttft_p50_ratio_dynamic": _ttft_ratio(rounds["cold"], rounds["dynamic"]),
    }
    rows: list[dict[str, Any]] = [
        {
            "contender": arm,
            "tokens_per_s": rates[arm],
            "tokens_per_s_charged": charged[arm],
            "requests": [len(r.served) for r in every],
            "warming_tokens": [r.warming_tokens for r in every],
            "warming_s": [r.warming_s for r in every],
            "window_s": every[0].window_s,
            "block_reuse": _reuse(every),
            "ttft_p50_ms": median(one.ttft_ms for r in every for one in r.served),
        }
        for arm, every in rounds.items()
    ]
    rows.append({"contender": "ideal", **ideal})
    return harness.result("kv_strategies", headline, rows)


def _reuse(rounds: Sequence[Round]) -> float:
    """Return hit blocks over whole blocks of all prompts."""
    served = [one for r in rounds for one in r.served]
    return sum(one.cached_tokens // BLOCK_SIZE for one in served) / sum(
        one.prompt_tokens // BLOCK_SIZE for one in served
    )


def _prefill_saved(cold: Sequence[Round], warm: Sequence[Round]) -> float:
    """Return the share of prefill tokens that live traffic was spared, on the requests that both arms served.

    It does not depend on how busy the machine is otherwise.
    """
    spent = {"cold": 0, "warm": 0}
    for before, after in zip(cold, warm, strict=True):
        common = {one.place for one in before.served} & {one.place for one in after.served}
        for arm, one_round in (("cold", before), ("warm", after)):
            spent[arm] += sum(one.prompt_tokens - one.cached_tokens for one in one_round.served if one.place in common)
    return 1 - spent["warm"] / spent["cold"]


def _ttft_ratio(cold: Sequence[Round], warm: Sequence[Round]) -> float:
    """Return the median time to first token, warm over cold, of the requests that both arms served."""
    cold_ms, warm_ms = [], []
    for before, after in zip(cold, warm, strict=True):
        first = {one.place: one.ttft_ms for one in before.served}
        both = [one for one in after.served if one.place in first]
        cold_ms += [first[one.place] for one in both]
        warm_ms += [one.ttft_ms for one in both]
    return median(warm_ms) / median(cold_ms)


def _ideal(
    log: Sequence[Logged], requests: Sequence[Logged], plans: dict[str, Planned], capacity: int
) -> dict[str, Any]:
    """Return block reuse by arithmetic, nothing evicted: of no warming, of each plan, of a plan that knew, of all."""
    prompts = [blocks_of(row.token_ids) for row in requests]
    past = [row.token_ids for row in log if row.at_s < 0]
    known = {name for ids in past for name in blocks_of(ids)}
    chosen = {
        arm: {name for row in plan.prefixes for name in blocks_of(plan.tokens(row))} for arm, plan in plans.items()
    }
    budget = max(len(names) for names in chosen.values())
    uses = Counter(name for names in prompts for name in names)
    sets = {"cold": set(), **chosen, "knew_the_window": best_set(past, uses, budget), "all_of_the_past": known}
    total = sum(len(row.token_ids) // BLOCK_SIZE for row in requests)
    reuse = {name: sum(_hits(prompts, warm)) / total for name, warm in sets.items()}
    return {
        "requests": len(requests),
        "budget_blocks": budget,
        "capacity_blocks": capacity,
        "blocks_seen_before_the_split_share": sum(uses[name] for name in known) / total,
        **{f"block_reuse_{name}": value for name, value in reuse.items()},
        "throughput_gain_bound_knew_the_window": (1 - reuse["cold"]) / max(1e-9, 1 - reuse["knew_the_window"]) - 1,
        **{
            f"throughput_gain_charged_bound_{name}": (1 - reuse["cold"]) / (1 - reuse[name] + len(sets[name]) / total)
            - 1
            for name in (*plans, "knew_the_window")
        },
    }


def _hits(prompts: Sequence[list[bytes]], warm: set[bytes]) -> list[int]:
    """Return each prompt's leading blocks that were warm or asked for earlier."""
    resident, hits = set(warm), []
    for names in prompts:
        hits.append(next((place for place, name in enumerate(names) if name not in resident), len(names)))
        resident.update(names)
    return hits
