"""Two tasks at once on a real vLLM: what each leaves is right, although one batch of both would not be.

With all adapter slots taken, vLLM's CPU build computes wrong KV blocks of the base model beside an adapter's requests.
"""

import asyncio
import random
from pathlib import Path

import pytest
import redis

from tests.support.small_night import MODEL, SmallNight, key, now
from warmup_tasks.engines.base import GenerationRequest
from warmup_tasks.engines.canary import Answer
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.items import ItemKind, Outcome, PlanRow, PromptBody
from warmup_tasks.local.vllm_cpu import make_model, start_vllm
from warmup_tasks.validation.answers import compare
from warmup_tasks.warming.shard import warm_shard

pytestmark = pytest.mark.real_engine
ADAPTERS = ("adapter-a", "adapter-b")
DEADLINE_S = 60


def test_base_and_adapters_of_several_tasks_leave_right_blocks(tmp_path: Path, redis_client: redis.Redis) -> None:
    model = make_model(Path(__file__).parents[2] / "out" / "models" / "small")
    specs = [AdapterSpec(name=n, version="1", path=str(model.adapters[n]), base_model=MODEL) for n in ADAPTERS]
    policy = {"request_deadline_s": DEADLINE_S, "response_tokens": 16}
    with start_vllm(model, MODEL, tmp_path / "vllm.log", capacity_tokens=32_768) as server:
        night = SmallNight(tmp_path, redis_client, {"r0": server.url}, adapters=specs, policy=policy)
        loaded = {name: night.adapter("r0", name) for name in ADAPTERS}
        prefixes = [night.prefix("r0", tokens(seed, 193), order=seed) for seed in range(20)]
        answers = [
            night.stored(
                ItemKind.RESPONSE,
                f"What about {number}?",
                adapter=name,
                depends_on=[loaded[name].item_id],
                shard=f"large.w2.{place:02d}",
            )
            for place, name in enumerate(ADAPTERS)
            for number in range(30)
        ]
        night.publish_plan()
        night.publish_epochs()
        night.warm(loaded["adapter-a"].shard)
        asyncio.run(warm_at_once(night, prefixes[0].shard, "large.w2.00", "large.w2.01"))
        wrong = asyncio.run(wrong_answers(night, prefixes))

    receipts = night.receipts()
    assert {receipts[key(row)].outcome for row in (*prefixes, *answers)} == {Outcome.WARMED}
    assert wrong == 0


def tokens(seed: int, count: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(300, 4000) for _ in range(count)]


async def warm_at_once(night: SmallNight, *shards: str) -> None:
    await asyncio.gather(
        *(
            warm_shard(night.lake, night.run, shard, night.fleet, open_engine=open_engine, redis=night.redis, now=now)
            for shard in shards
        )
    )


async def wrong_answers(night: SmallNight, rows: list[PlanRow]) -> int:
    """Prefixes whose blocks give another answer than a cold prompt does."""
    found = 0
    async with open_engine(night.fleet.replica("r0")) as engine:
        for row in rows:
            body = PromptBody(token_ids=night.payloads[row.payload_sha256 or ""].token_ids)
            warm, cold = [
                await engine.generate(
                    GenerationRequest(body, MODEL, max_tokens=8, cache_salt=salt, with_logprobs=True),
                    deadline_s=DEADLINE_S,
                )
                for salt in (None, f"cold-{row.item_id}")
            ]
            assert (warm.cached_tokens, cold.cached_tokens) == (192, 0)
            found += compare(Answer.of(cold), Answer.of(warm), 0.05).is_equal is False
    return found
