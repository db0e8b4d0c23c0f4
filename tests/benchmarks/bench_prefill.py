"""The KV wave on a real engine: does it compute anything twice, does it keep the engine busy, is what is left the best?

1. *Computed to unique*: tokens that the engine computed over whole blocks of the tree and one tail token a prompt.
2. *Speed*: the wave's tokens per second over the best of 1, 4, 8 and 16 requests under way, on prompts of the same
   lengths that share nothing; in turns.
3. *What is left* when twice as much is chosen as the cache holds, by the engine's own KV events. What a block saves is
   counted by the requests that really came in the window after the split. Beside ours stands the naive way, the same
   list hottest first, and the best set of the list that fits, which knows those requests. A plan does not know them:
   the last figure is the same share by the uses that the plan expected.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import agent_traffic, harness
from tests.benchmarks.agent_traffic import DEADLINE_S, HEAT_TAU_S, HORIZON_S, MODEL, Bench, Logged, Planned
from warmup_tasks.demand.prefix_tree import PrefixTree, TokenSequence, block_hashes, tree_seed
from warmup_tasks.engines.attempts import generate
from warmup_tasks.engines.base import GenerationRequest, KvEvent
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.items import PromptBody
from warmup_tasks.local.vllm_cpu import BLOCK_SIZE
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.planning.allocation import allocate

ENGINE = "vllm"
"""Measured on the real engine alone."""

HIDDEN, LAYERS = 256, 4
CAPACITY_TOKENS, MAX_PROMPT_TOKENS = 98_304, 3_900
SMALL_CAPACITY_TOKENS, SMALL_PROMPT_TOKENS = 12_288, 1_024
RATES = (1, 4, 8, 16)
ROUNDS = 5
_SETTLE_S = 0.5


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Measure; ``scale`` shrinks the rounds."""
    data = agent_traffic.data_folder()
    rounds = max(1, round(ROUNDS * scale))
    with agent_traffic.real_engine(out, HIDDEN, LAYERS, capacity_tokens=CAPACITY_TOKENS) as bench:
        log = agent_traffic.read_log(bench, data, MAX_PROMPT_TOKENS)
        parameters = GoldenParameters(concurrency=8, budget_share=0.6, top_k=5000, heat_tau_slow_s=HEAT_TAU_S)
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
        "resident_gain_share_of_what_the_plan_knew": left["ours"]["forecast_share"],
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
    blocks = {name for ids in prompts for name in block_hashes(_sequence(ids))}
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
    future = [row for row in log if 0 <= row.at_s < HORIZON_S]
    parameters = GoldenParameters(concurrency=1, budget_share=0.9, top_k=5000, heat_tau_slow_s=HEAT_TAU_S)
    chosen = bench.plan("left", log, parameters, capacity=2 / 0.9)
    realised = Counter(name for row in future for name in block_hashes(_sequence(row.token_ids)))
    forecast: Counter[bytes] = Counter()
    for row in chosen.prefixes:
        for name in block_hashes(_sequence(chosen.tokens(row))):
            forecast[name] = max(forecast[name], round(1000 * row.expected_uses))
    capacity = int(asyncio.run(bench.metrics()).capacity_blocks) - 1
    candidates = [chosen.tokens(row) for row in chosen.prefixes]
    best = _best(candidates, realised, capacity)
    known = _best(candidates, forecast, capacity)
    names = {name for ids in candidates for name in block_hashes(_sequence(ids))}
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "ours": lambda: asyncio.to_thread(chosen.warm),
        "naive": lambda: _send(bench, candidates[::-1], 8),
    }
    found = {}
    for way, do in ways.items():
        bench.empty()
        resident = asyncio.run(_resident_after(bench, do))
        blocks = {name for ids in candidates for name in _leading(ids, resident)}
        found[way] = {
            "chosen_blocks": len(names),
            "capacity_blocks": capacity,
            "resident_blocks": len(blocks),
            "gain_share": sum(realised[name] for name in blocks) / best,
            "forecast_share": sum(forecast[name] for name in blocks) / known,
        }
    found["best that fits"] = {"resident_blocks": capacity, "gain_share": 1.0, "saved_tokens": best * BLOCK_SIZE}
    return found


def _best(prompts: Sequence[list[int]], uses: Mapping[bytes, int], capacity: int) -> int:
    """Return the block uses that the best set of whole heads within the capacity serves."""
    sequences = [_sequence(ids) for ids in prompts]
    tree = PrefixTree.build(sequences)
    names = [list(block_hashes(sequence)) for sequence in sequences]
    runs = [
        names[example][start // BLOCK_SIZE : end // BLOCK_SIZE]
        for example, start, end in zip(tree.example, tree.start_tokens, tree.end_tokens, strict=True)
    ]
    gains = [float(sum(uses[name] for name in own)) for own in runs]
    taken = allocate([int(p) for p in tree.parent], [len(own) for own in runs], gains, capacity)
    return sum(uses[name] for own, part in zip(runs, taken, strict=True) for name in own[:part])


@dataclass
class _Picture:
    """What the engine's events say of its cache: prompts' heads, by hash."""

    tokens: dict[int | bytes, tuple[int | bytes | None, tuple[int, ...]]] = field(default_factory=dict)

    def take(self, event: KvEvent) -> None:
        if event.kind == "stored":
            parent = event.parent
            size = len(event.token_ids) // max(1, len(event.block_hashes))
            for place, name in enumerate(event.block_hashes):
                self.tokens[name] = (parent, event.token_ids[place * size : (place + 1) * size])
                parent = name
        elif event.kind == "removed":
            for name in event.block_hashes:
                self.tokens.pop(name, None)
        else:
            self.tokens.clear()


async def _resident_after(bench: Bench, do: Callable[[], Awaitable[object]]) -> _Picture:
    """Listen to the engine's events while something is done, and return what is resident afterwards."""
    picture = _Picture()
    async with open_engine(bench.fleet.replicas[0]) as engine:
        events = engine.kv_events()
        if events is None:
            raise ValueError("the engine offers no KV events")

        async def listen() -> None:
            async with aclosing(events):
                async for event in events:
                    picture.take(event)

        listener = asyncio.create_task(listen())
        await asyncio.sleep(_SETTLE_S)
        await do()
        await asyncio.sleep(_SETTLE_S)
        listener.cancel()
        with suppress(asyncio.CancelledError):
            await listener
    return picture


def _leading(ids: list[int], picture: _Picture) -> Iterable[bytes]:
    """Yield the names of a prompt's leading blocks that are resident."""
    by_place = {place: name for name, place in picture.tokens.items()}
    parent: int | bytes | None = None
    for number, name in enumerate(block_hashes(_sequence(ids))):
        found = by_place.get((parent, tuple(ids[number * BLOCK_SIZE : (number + 1) * BLOCK_SIZE])))
        if found is None:
            return
        parent = found
        yield name


def _sequence(ids: Sequence[int]) -> TokenSequence:
    array = np.asarray(ids, dtype=np.int32)
    return TokenSequence(array, len(ids), tree_seed(MODEL, None, None), BLOCK_SIZE)
