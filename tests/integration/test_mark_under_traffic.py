"""Marks under live traffic that fills the cache: each ends, or is void, before what it speaks of is evicted.

The night is real down to the double's block pool, which is asked what it still holds; others send prompts of their own
all the time, before, while and after the night is proved.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import redis

from tests.support.small_night import BLOCK, MODEL, SmallNight, key
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.items import PlanRow
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.reader import ReaderClient

CAPACITY_BLOCKS, PREFIXES, BLOCKS = 1000, 24, 12
PROMPT_BLOCKS, PAUSE_S = 12, 0.08
LIMIT_S = 60


@pytest.fixture(scope="module")
def double() -> Iterator[DoubleProcess]:
    with start_double(
        developer_mode=True,
        num_gpu_blocks=CAPACITY_BLOCKS + 1,
        latency={"per_token_ms": 0.1},
        max_model_len=1024,
    ) as process:
        yield process


@pytest.fixture
def night(double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis) -> Iterator[SmallNight]:
    made = SmallNight(tmp_path, redis_client, {"a": double}, policy={"twins_per_stratum": 4})
    made.control("a", "/double/restart")
    yield made
    made.http.close()


@contextmanager
def live_traffic(night: SmallNight, pause_s: float = PAUSE_S) -> Iterator[None]:
    """Others ask for a new prompt every now and then, never sooner than after ``pause_s``."""
    stop = threading.Event()

    def run() -> None:
        number = 10_000
        with httpx.Client(timeout=10) as http:
            while not stop.wait(pause_s):
                number += 1
                body = {"model": MODEL, "prompt": night.tokens(number, PROMPT_BLOCKS), "max_tokens": 1}
                http.post(f"{night.urls['a']}/v1/completions", json=body)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def planned(night: SmallNight) -> list[PlanRow]:
    return [night.prefix("a", night.tokens(seed, BLOCKS), order=seed) for seed in range(PREFIXES)]


def is_resident(night: SmallNight, row: PlanRow) -> bool:
    tokens = night.payloads[row.payload_sha256 or ""].token_ids or []
    seen = night.control("a", "/double/residency", model=MODEL, prompt=tokens)
    return seen["found"] * BLOCK >= len(tokens) - 1


def ready(night: SmallNight, rows: list[PlanRow]) -> set[str]:
    reader = ReaderClient(night.redis)
    return {
        row.item_id
        for row in rows
        if reader.is_item_ready(row.tenant, row.identity_digest, row.item_id, row.replica).is_ready
    }


def ends_of(night: SmallNight, rows: list[PlanRow]) -> list[timedelta]:
    marks = MarkStore(night.redis).get_many(
        [MarkAddress(row.tenant, row.identity_digest, row.item_id, row.replica) for row in rows]
    )
    return [mark.expires_at - mark.marked_at for mark in marks if mark is not None]


def test_every_mark_ends_before_its_blocks_do(night: SmallNight) -> None:
    rows = planned(night)
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    with live_traffic(night):
        night.warm()
        night.publish_epochs()
        night.probe()
        night.publish()
        lives = ends_of(night, rows)
        assert lives, "a cache with room to spare leaves something ready"
        assert max(lives) < timedelta(seconds=LIMIT_S), "the turnover ends them, not the policy's eight hours"
        evicted: set[str] = set()
        end = time.monotonic() + LIMIT_S
        while len(evicted) < len(rows):
            assert time.monotonic() < end, "the traffic never evicted what was warmed"
            night.publish_epochs()
            gone = {row.item_id for row in rows if not is_resident(night, row)}
            wrong = gone & ready(night, rows)  # what is gone stays gone: it was so when it was still called ready
            assert not wrong, f"{len(wrong)} of {len(gone)} evicted prefixes are called ready"
            evicted |= gone
    assert ready(night, rows) == set()


def test_without_traffic_the_policy_ends_them(night: SmallNight) -> None:
    rows = planned(night)
    night.whole()
    assert [round(life.total_seconds()) for life in ends_of(night, rows)] == [night.run.policy.mark_life_s] * len(rows)


def test_what_traffic_evicts_before_publication_is_never_ready(night: SmallNight) -> None:
    """Traffic that turns the cache over between the warm wave and the probes leaves nothing to be called ready."""
    rows = planned(night)
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    coldest = rows[0]
    for number in range(2 * CAPACITY_BLOCKS // 60):
        body = {"model": MODEL, "prompt": night.tokens(50_000 + number, 60), "max_tokens": 1}
        night.http.post(f"{night.urls['a']}/v1/completions", json=body).raise_for_status()
    night.publish_epochs()
    night.probe()
    night.publish()
    assert ready(night, rows) == set()
    assert night.quarantine()[key(coldest)]
