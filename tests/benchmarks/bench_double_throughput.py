"""Generations per second of the engine double without its waiting, against its cheapest endpoint, ``/health``.

Says how much load the double can carry before it, and not the latency that it models, is what a test measures.
"""

import asyncio
from pathlib import Path
from statistics import median

import httpx

from tests.benchmarks import harness
from warmup_tasks.engines.base import GenerationRequest
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.engines.vllm import VllmEngine
from warmup_tasks.fleet_file import ReplicaSpec
from warmup_tasks.items import PromptBody

REQUESTS = 400
CONCURRENCY = 8
PROMPT_TOKENS = 1024
DEADLINE_S = 60.0


def run(out: Path, scale: float = 1.0) -> harness.BenchResult:
    """Time cold generations, cached ones, and health checks, in turns, with eight at a time."""
    count = max(int(REQUESTS * scale), CONCURRENCY)
    with start_double(time_scale=0.0, num_gpu_blocks=16_384) as double:
        turn = iter(range(1000))
        contenders = {
            "cold": lambda: asyncio.run(_generate(double.url, count, first=1 + next(turn) * count)),
            "cached": lambda: asyncio.run(_generate(double.url, count, first=None)),
            "health": lambda: asyncio.run(_health(double.url, count)),
        }
        seconds = harness.in_turns(contenders, repeats=3)
    per_s = {name: count / median(found) for name, found in seconds.items()}
    headline = {
        "cold_per_s": per_s["cold"],
        "cached_per_s": per_s["cached"],
        "cold_tokens_per_s": per_s["cold"] * PROMPT_TOKENS,
        "health_per_s": per_s["health"],
        "cached_per_health": per_s["cached"] / per_s["health"],
    }
    facts = {"requests": count, "concurrency": CONCURRENCY, "prompt_tokens": PROMPT_TOKENS}
    return harness.result("double_throughput", headline, harness.rows_of(seconds, **facts))


async def _generate(url: str, count: int, first: int | None) -> None:
    """Send ``count`` prompts: distinct from their first token on, or, without ``first``, always the same one."""
    replica = ReplicaSpec(name="bench", url=url, profile="bench", model="double-base")
    limit = asyncio.Semaphore(CONCURRENCY)

    async def ask(engine: VllmEngine, start: int) -> None:
        tokens = [1000 + (start * 31 + place) % 5000 for place in range(PROMPT_TOKENS)]
        async with limit:
            request = GenerationRequest(PromptBody(token_ids=tokens), "double-base", cache_salt=f"s{start}")
            await engine.generate(request, deadline_s=DEADLINE_S)

    async with VllmEngine(replica) as engine:
        await asyncio.gather(*(ask(engine, 0 if first is None else first + n) for n in range(count)))


async def _health(url: str, count: int) -> None:
    limit = asyncio.Semaphore(CONCURRENCY)

    async def ask(client: httpx.AsyncClient) -> None:
        async with limit:
            (await client.get("/health")).raise_for_status()

    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
        await asyncio.gather(*(ask(client) for _ in range(count)))
