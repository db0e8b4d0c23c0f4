"""The measured replay against the real double: a cold world that stays cold, and a warm one."""

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from tests.support.small_night import AS_OF, BLOCK, MODEL, PROFILE, SmallNight, write_adapter
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.errors import ConfigurationError, RetryLaterError
from warmup_tasks.fleet_file import AdapterSpec, TenantSpec
from warmup_tasks.identity import SaltMode
from warmup_tasks.items import PromptBody, Reason, ReplayRow
from warmup_tasks.lake.schemas import REQUESTS, from_table
from warmup_tasks.replay.measured import replay
from warmup_tasks.serving.replica_turns import ReplicaTurns

SYSTEM = "You are the support desk of a harbour. " * 20


@pytest.fixture(scope="module")
def doubles() -> Iterator[dict[str, DoubleProcess]]:
    with start_double(time_scale=0) as first, start_double(time_scale=0) as second:
        yield {"a": first, "b": second}


@pytest.fixture
def night(doubles: dict[str, DoubleProcess], tmp_path: Path, redis_client: redis.Redis) -> SmallNight:
    made = SmallNight(tmp_path, redis_client, doubles, request={"measure_window_s": 300})
    for name in "ab":
        made.control(name, "/double/restart")
    return made


def request(number: int, time: datetime, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Question {number}?"}]
    body = PromptBody(messages=messages).model_dump_json(exclude_none=True)
    nothing = dict.fromkeys(REQUESTS.names)
    return {
        **nothing,
        "schema_version": 1,
        "request_id": f"r{number:03d}",
        "time": time,
        "model": "default",
        "request_type": "chat",
        "session_id": f"s{number % 5}",
        "body_json": body,
        "is_truncated": False,
        **more,
    }


def log(night: SmallNight, *rows: dict[str, Any]) -> None:
    day = AS_OF.date().isoformat()
    night.lake.publish("requests", day, {"requests": pa.Table.from_pylist(list(rows), schema=REQUESTS)})


def run(night: SmallNight, arm: str) -> tuple[list[ReplayRow], dict[str, Any]]:
    turns = ReplicaTurns(night.redis, "replay", wait_s=10)
    work = replay(night.lake, night.run, PROFILE, arm, night.fleet, open_engine=open_engine, turns=turns)
    ref, summary = asyncio.run(work)
    return from_table(night.lake.read(ref, "replay"), ReplayRow), summary


def test_either_arm_sends_the_window_to_the_same_replicas(night: SmallNight) -> None:
    times = [
        AS_OF - timedelta(seconds=1),
        *(AS_OF + timedelta(seconds=n) for n in range(9)),
        AS_OF + timedelta(hours=1),
    ]
    log(night, *(request(n, time) for n, time in enumerate(times)))

    cold, summary = run(night, "cold")
    warm, _ = run(night, "warm")

    assert {row.request_id for row in cold} == {f"r{n:03d}" for n in range(1, 10)}
    assert [(row.request_id, row.replica) for row in cold] == [(row.request_id, row.replica) for row in warm]
    assert {row.replica for row in cold} == {"a", "b"}
    assert summary["requests"] == 9


def test_the_cold_world_reuses_its_own_blocks_and_starts_cold_again(night: SmallNight) -> None:
    log(night, *(request(n, AS_OF + timedelta(seconds=n)) for n in range(6)))

    first, _ = run(night, "cold")
    second, _ = run(night, "cold")

    hits = [row.hit_blocks for row in first]
    assert sum(hit == 0 for hit in hits) == len({row.replica for row in first}), "the first one on each replica"
    assert [row.hit_blocks for row in second] == hits
    assert all(row.full_blocks == (row.prompt_tokens or 0) // BLOCK for row in first)


def test_the_warm_arm_sees_what_live_salts_left(night: SmallNight) -> None:
    log(night, *(request(n, AS_OF + timedelta(seconds=n)) for n in range(6)))
    run(night, "warm")

    again, summary = run(night, "warm")

    assert all((row.hit_blocks or 0) >= (row.full_blocks or 0) - 1 for row in again)
    assert summary["hit_blocks"] == sum(row.hit_blocks or 0 for row in again)


def test_no_window_is_an_empty_table(night: SmallNight) -> None:
    log(night, request(1, AS_OF))
    night.run = night.run.model_copy(update={"request": night.run.request.model_copy(update={"measure_window_s": 0})})

    rows, summary = run(night, "warm")

    assert rows == []
    assert summary["requests"] == 0


def test_what_cannot_be_sent_as_logged_is_not_sent(night: SmallNight) -> None:
    log(
        night,
        request(1, AS_OF, body_json=None),
        request(2, AS_OF, is_truncated=True),
        request(3, AS_OF, request_type="embedding"),
        request(4, AS_OF, model="another"),
        request(5, AS_OF),
    )

    rows, summary = run(night, "cold")

    assert [row.request_id for row in rows] == ["r005"]
    assert summary["not_sent"] == 1, "only the one with another model was looked at"


def test_refusals_are_rows_with_their_reason(night: SmallNight, tmp_path: Path) -> None:
    spec = AdapterSpec(name="known", version="1", path=str(write_adapter(tmp_path / "known")), base_model=MODEL)
    night.fleet = night.fleet.model_copy(update={"adapters": [spec]})
    log(night, request(1, AS_OF, adapter="known"), request(2, AS_OF, adapter="unknown"), request(3, AS_OF))

    rows, summary = run(night, "cold")

    assert {row.request_id: row.error for row in rows} == {
        "r001": Reason.ENGINE_REFUSED,
        "r002": Reason.ADAPTER_UNKNOWN,
        "r003": None,
    }
    assert summary["errors"] == {Reason.ENGINE_REFUSED: 1, Reason.ADAPTER_UNKNOWN: 1}


def test_an_adapter_that_the_log_calls_a_model_is_asked_for_by_its_name(night: SmallNight, tmp_path: Path) -> None:
    spec = AdapterSpec(name="known", version="1", path=str(write_adapter(tmp_path / "known")), base_model=MODEL)
    night.fleet = night.fleet.model_copy(update={"adapters": [spec], "replicas": night.fleet.replicas[:1]})
    night.control_text("a", "/v1/load_lora_adapter", lora_name="known", lora_path=spec.path)
    log(night, request(1, AS_OF, model="known"), request(2, AS_OF, model=MODEL, adapter="known"))

    rows, _ = run(night, "warm")

    assert [row.error for row in rows] == [None, None]
    assert [(row.hit_blocks or 0) > 0 for row in rows] == [False, True], "one adapter, one prefix"


def test_tenants_salts_are_kept_apart_in_either_arm(night: SmallNight) -> None:
    tenants = [TenantSpec(name=name, salt_mode=SaltMode.DERIVED) for name in ("acme", "beta")]
    night.fleet = night.fleet.model_copy(update={"tenants": tenants, "replicas": night.fleet.replicas[:1]})
    log(night, *(request(n, AS_OF, tenant=tenant) for n, tenant in enumerate(["acme", "beta", "acme"])))

    for arm in ("cold", "warm"):
        rows, _ = run(night, arm)
        assert [(row.hit_blocks or 0) > 0 for row in rows] == [False, False, True], arm


def test_an_engine_that_tells_no_usage_leaves_hits_open(night: SmallNight) -> None:
    night.control("a", "/double/faults", usage_details="null")
    night.control("b", "/double/faults", usage_details="null")
    log(night, request(1, AS_OF), request(2, AS_OF))

    rows, summary = run(night, "cold")

    assert [row.hit_blocks for row in rows] == [None, None]
    assert summary["full_blocks"] == 0, "a ratio is only of what was told"
    for name in "ab":
        night.control(name, "/double/faults", "DELETE")


def test_no_replica_at_all_is_for_later(tmp_path: Path, redis_client: redis.Redis) -> None:
    night = SmallNight(tmp_path, redis_client, {"a": "http://127.0.0.1:9"}, request={"measure_window_s": 300})
    log(night, request(1, AS_OF))

    with pytest.raises(RetryLaterError):
        run(night, "cold")


def test_an_unknown_arm_is_refused(night: SmallNight) -> None:
    with pytest.raises(ConfigurationError, match="lukewarm"):
        run(night, "lukewarm")
