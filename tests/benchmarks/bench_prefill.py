"""The KV wave on a real engine: does it compute anything twice, does it keep the engine busy, is what is left the best?

1. *Computed to unique*: tokens that the engine computed over whole blocks of the tree and one tail token a prompt.
2. *Speed*: the wave's tokens per second over the best of 1, 4, 8 and 16 requests under way, on prompts of the same
   lengths that share nothing; in turns.
3. *What is left* when twice as much is chosen as the cache holds, by the engine's own KV events. What a block saves is
   counted by all requests that really came after the split. Beside ours stands the naive way, the same list hottest
   first, and the best set of the list that fits, which knows those requests. A plan does not know them, so the share
   is parted: what the plan meant to keep, over the best set (the forecast's part), and what stayed, over what was
   meant to stay (the part of order and capacity).
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import agent_traffic, harness
from tests.benchmarks.agent_traffic import DEADLINE_S, MODEL, Bench, Logged, Planned, best_set, blocks_of
from warmup_tasks.engines.attempts import generate
from warmup_tasks.engines.base import GenerationRequest
from warmup_tasks.engines.cache_picture import CachePicture
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.items import PromptBody
from warmup_tasks.local.vllm_cpu import BLOCK_SIZE
from warmup_tasks.parameters import GoldenParameters

NEEDS = "vllm"
"""Measured on the real engine alone."""

HIDDEN, LAYERS = 256, 4
CAPACITY_TOKENS, MAX_PROMPT_TOKENS = 98_304, 3_900
SMALL_CAPACITY_TOKENS, SMALL_PROMPT_TOKENS = 12_288, 1_024
RATES = (1, 4, 8, 16)
ROUNDS = 3
_SETTLE_S = 0.5


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Measure; ``scale`` shrinks the rounds."""
    data = agent_traffic.data_folder()
    rounds = max(1, round(ROUNDS * scale))
    with agent_traffic.real_engine(out, HIDDEN, LAYERS, capacity_tokens=CAPACITY_TOKENS) as bench:
        log = agent_traffic.read_log(bench, data, MAX_PROMPT_TOKENS)
        parameters = GoldenParameters(concurrency=8, budget_share=0.6, top_k=5000)
        wave = bench.plan("wave", log, parameters)
        prefill, ratio = _computed_to_unique(wave)
        speeds = _speeds(wave, rounds)
    best = max(np.median(speeds[f"concurrency {rate}"]) for rate in RATES)
    ours = float(np.median(speeds["warm-up wave"]))
    options = {"capacity_tokens": SMALL_CAPACITY_TOKENS, "has_kv_events": True}
    with agent_traffic.real_engine(out, HIDDEN, LAYERS, **options) as bench:
        left = _what_is_left(bench, agent_traffic.read_log(bench, data, SMALL_PROMPT_TOKENS))
    headline = {
        "computed_to_unique": ratio,
        "speed_share": ours / float(best),
        "resident_gain_share_ours": left["ours"]["gain_share"],
        "resident_gain_share_naive": left["naive"]["gain_share"],
        "share_of_what_was_meant_to_stay": left["ours"]["share_of_what_was_meant_to_stay"],
        "gain_share_meant_to_stay": left["meant to stay"]["gain_share"],
    }
    rows: list[dict[str, Any]] = [{"contender": "wave", **prefill}]
    rows += [{"contender": name, "tokens_per_s": float(np.median(s)), "turns": len(s)} for name, s in speeds.items()]
    rows += [{"contender": f"what is left: {name}", **facts} for name, facts in left.items()]
    return harness.result("prefill", headline, rows)


def _computed_to_unique(wave: Planned) -> tuple[dict[str, Any], float]:
    wave.bench.empty()
    before = asyncio.run(wave.bench.metrics())
    wave.warm()
    after = asyncio.run(wave.bench.metrics())
    queries = after.prefix_queries_tokens - before.prefix_queries_tokens
    computed = queries - (after.prefix_hits_tokens - before.prefix_hits_tokens)
    prompts = [wave.tokens(row) for row in wave.prefixes]
    blocks = {name for ids in prompts for name in blocks_of(ids)}
    unique = len(blocks) * BLOCK_SIZE + sum(len(ids) % BLOCK_SIZE for ids in prompts)
    facts = {"prompts": len(prompts), "prompt_tokens": sum(map(len, prompts)), "computed": computed, "unique": unique}
    return facts, computed / unique


def _speeds(wave: Planned, rounds: int) -> dict[str, list[float]]:
    """Return contender → tokens per second, in turns, the first round uncounted."""
    lengths = [row.unique_tokens + 1 for row in wave.prefixes]
    tokens = sum(lengths)
    alphabet = sorted({token for row in wave.prefixes for token in wave.tokens(row)})
    draw = random.Random(1)

    def bare(limit: int) -> Callable[[], object]:
        def go() -> None:
            prompts = [draw.choices(alphabet, k=length) for length in lengths]
            asyncio.run(_send(wave.bench, prompts, limit))

        return go

    contenders: dict[str, Callable[[], object]] = {f"concurrency {rate}": bare(rate) for rate in RATES}
    contenders["warm-up wave"] = wave.warm
    seconds = harness.in_turns(contenders, rounds, wave.bench.empty)
    return {name: [tokens / one for one in every] for name, every in seconds.items()}


async def _send(bench: Bench, prompts: Sequence[list[int]], limit: int) -> None:
    """Send prompts in their order, ``limit`` under way."""
    todo = iter(prompts)
    async with open_engine(bench.fleet.replicas[0]) as engine:

        async def worker() -> None:
            for ids in todo:
                await generate(engine, GenerationRequest(PromptBody(token_ids=ids), MODEL), deadline_s=DEADLINE_S)

        await asyncio.gather(*(worker() for _ in range(limit)))


def _what_is_left(bench: Bench, log: Sequence[Logged]) -> dict[str, dict[str, Any]]:
    """Return what each way leaves in the cache, as a share of what the best set that fits would save."""
    parameters = GoldenParameters(concurrency=1, budget_share=0.9, top_k=5000)
    chosen = bench.plan("left", log, parameters, capacity=2 / 0.9)
    candidates = [chosen.tokens(row) for row in chosen.prefixes]
    capacity = int(asyncio.run(bench.metrics()).capacity_blocks) - 1
    realised = Counter(name for row in log if row.at_s >= 0 for name in blocks_of(row.token_ids))
    forecast: Counter[bytes] = Counter()
    for row in chosen.prefixes:
        for name in blocks_of(chosen.tokens(row)):
            forecast[name] = max(forecast[name], round(1000 * row.expected_uses))
    best, meant = best_set(candidates, realised, capacity), best_set(candidates, forecast, capacity)
    saved, meant_to_save = _gain(best, realised), _gain(meant, realised)
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "ours": lambda: asyncio.to_thread(chosen.warm),
        "naive": lambda: _send(bench, candidates[::-1], 8),
    }
    found: dict[str, dict[str, Any]] = {}
    for way, do in ways.items():
        blocks = asyncio.run(_resident_after(bench, do, candidates))
        found[way] = {
            "chosen_blocks": len({name for ids in candidates for name in blocks_of(ids)}),
            "capacity_blocks": capacity,
            "resident_blocks": len(blocks),
            "gain_share": _gain(blocks, realised) / saved,
            "share_of_what_was_meant_to_stay": _gain(blocks, realised) / meant_to_save,
        }
    found["meant to stay"] = {"resident_blocks": len(meant), "gain_share": meant_to_save / saved}
    found["best that fits"] = {"resident_blocks": len(best), "gain_share": 1.0, "saved_tokens": saved * BLOCK_SIZE}
    return found


def _gain(blocks: Iterable[bytes], uses: Counter[bytes]) -> int:
    return sum(uses[name] for name in blocks)


async def _resident_after(
    bench: Bench, do: Callable[[], Awaitable[object]], candidates: Sequence[list[int]]
) -> set[bytes]:
    """Return which blocks of the candidates are resident when something was done to an empty cache, by its events."""
    bench.empty()
    await do()
    await asyncio.sleep(_SETTLE_S)
    picture = CachePicture()
    async with open_engine(bench.fleet.replicas[0]) as engine:
        events = engine.kv_contents()
        if events is None:
            raise ValueError("the engine offers no KV events")
        async with aclosing(events):
            while not picture.is_current:
                picture.take(await anext(events))
    heads = (
        blocks_of(ids)[: picture.resident_blocks(ids, BLOCK_SIZE, adapter=None, cache_salt=None)] for ids in candidates
    )
    return {name for head in heads for name in head}
