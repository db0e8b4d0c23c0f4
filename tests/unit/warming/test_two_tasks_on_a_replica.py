"""Two tasks on one replica at once: the base model's and an adapter's work never meet in one batch.

The double is told to do what vLLM's CPU build does: beside an adapter's prompts the base model's leave wrong blocks.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.support.small_night import MODEL, SmallNight, key, now, write_adapter
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.errors import RetryLaterError
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.items import ItemKind, Outcome, PlanRow
from warmup_tasks.serving.replica_turns import ReplicaTurns
from warmup_tasks.warming.shard import warm_shard

BASE, TUNED = "large.w2.00", "large.w2.01"


@pytest.fixture(scope="module")
def double() -> Iterator[DoubleProcess]:
    with start_double(developer_mode=True, num_gpu_blocks=2001, time_scale=0.2) as process:
        yield process


@pytest.fixture
def night(double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis) -> Iterator[SmallNight]:
    spec = AdapterSpec(name="support", version="1", path=str(write_adapter(tmp_path / "a")), base_model=MODEL)
    made = SmallNight(tmp_path, redis_client, {"a": double}, adapters=[spec], policy={"response_tokens": 8})
    made.control("a", "/double/restart")
    made.control("a", "/double/faults", mixed_batches=True)
    yield made
    made.control("a", "/double/faults", "DELETE")


def warm_at_once(night: SmallNight, *shards: str) -> None:
    async def all_of_them() -> None:
        work = [
            warm_shard(night.lake, night.run, shard, night.fleet, open_engine=open_engine, redis=night.redis, now=now)
            for shard in shards
        ]
        await asyncio.gather(*work)

    asyncio.run(all_of_them())


def test_replicas_that_share_a_gpu_have_one_turn(double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis):
    """Whoever works on one of them keeps every task off the other, in every stage."""
    night = SmallNight(tmp_path, redis_client, {"a": double}, policy={"turn_wait_s": 0.2})
    shared = [replica.model_copy(update={"gpu": "card-0"}) for replica in night.fleet.replicas]
    night.fleet = night.fleet.model_copy(update={"replicas": shared})
    neighbour = shared[0].model_copy(update={"name": "b"})
    assert neighbour.turn == shared[0].turn != "a"
    night.prefix("a", night.tokens(1, 20), order=0)
    night.publish_plan()
    night.publish_epochs()

    async def held(stage: Callable[[], object]) -> None:
        async with ReplicaTurns(redis_client, "the neighbour's", wait_s=5).on(neighbour.turn):
            with pytest.raises(RetryLaterError, match="others work on"):
                await asyncio.to_thread(stage)

    for stage in (night.twins, night.warm, night.probe):
        asyncio.run(held(stage))
        stage()


def planned(night: SmallNight) -> tuple[list[PlanRow], list[PlanRow]]:
    """Prefixes of the base model, and answers of an adapter that another task generates."""
    adapter = night.adapter("a", "support")
    prefixes = [night.prefix("a", night.tokens(seed, 20), order=seed) for seed in range(12)]
    answers = [
        night.stored(
            ItemKind.RESPONSE, f"What about {n}? " * 20, adapter="support", depends_on=[adapter.item_id], shard=TUNED
        )
        for n in range(40)
    ]
    night.publish_plan()
    night.publish_epochs()
    night.warm(adapter.shard)
    return prefixes, answers


def wrong_blocks(night: SmallNight, rows: list[PlanRow]) -> int:
    """Blocks that the replica holds and that its weights did not make."""
    found = 0
    for row in rows:
        body = {"model": MODEL, "prompt": night.payloads[row.payload_sha256 or ""].token_ids}
        seen = night.control("a", "/double/residency", **body)
        assert seen["found"] == 20
        found += seen["found"] - seen["right"]
    return found


def test_what_they_leave_is_right(night: SmallNight) -> None:
    prefixes, answers = planned(night)
    warm_at_once(night, prefixes[0].shard, TUNED)

    assert wrong_blocks(night, prefixes) == 0
    receipts = night.receipts()
    assert {receipts[key(row)].outcome for row in (*prefixes, *answers)} == {Outcome.WARMED}


def test_beside_an_adapter_s_request_that_takes_no_turn_it_is_not(night: SmallNight) -> None:
    """Live traffic does that; what the tests above rule out is to be seen here."""
    prefixes, _ = planned(night)
    body = {"model": "support", "prompt": night.tokens(77, 2), "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with night.http.stream("POST", f"{night.urls['a']}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        lines = answer.iter_lines()  # kept: the request ends with it
        assert next(lines)
        night.warm(prefixes[0].shard)

    assert wrong_blocks(night, prefixes) > 0


def test_two_shards_of_answers_share_a_replica(night: SmallNight) -> None:
    rows = [night.stored(ItemKind.RESPONSE, f"What about {n}? " * 9, shard=(BASE, TUNED)[n % 2]) for n in range(70)]
    night.publish_plan()
    night.publish_epochs()
    warm_at_once(night, BASE, TUNED)

    receipts = night.receipts()
    assert {receipts[key(row)].outcome for row in rows} == {Outcome.WARMED}
    most = max(
        sum(r.started_at <= moment.started_at < r.finished_at for r in receipts.values())
        for moment in receipts.values()
    )
    assert most <= night.run.parameters.concurrency, "under way on the replica, both tasks together"
