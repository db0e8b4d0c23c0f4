"""Validation against the real double over HTTP and a real Redis: what becomes ready, and what must not."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.small_night import AS_OF, MODEL, SmallNight, key, now, write_adapter
from warmup_tasks.engines.base import GenerationRequest
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.fleet_file import AdapterSpec
from warmup_tasks.items import EvidenceKind, GainBasis, PromptBody, Reason, Residency
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.marks import MarkAddress, MarkStore
from warmup_tasks.serving.readiness import is_ready
from warmup_tasks.validation.probes import run_probes

Start = Callable[..., DoubleProcess]


@pytest.fixture(scope="module")
def double() -> Iterator[DoubleProcess]:
    """A slow one: what caching saves must stand out from the noise of a busy machine."""
    with start_double(developer_mode=True, latency={"per_token_ms": 0.3}) as process:
        yield process


@pytest.fixture
def night(double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis) -> Iterator[SmallNight]:
    made = SmallNight(tmp_path, redis_client, {"a": double})
    made.control("a", "/double/restart")
    yield made
    made.control("a", "/double/faults", "DELETE")
    made.control("a", "/double/weights", revision="r1")


def mark_of(night: SmallNight, row: Any) -> Any:
    return MarkStore(night.redis).get(MarkAddress(row.tenant, row.identity_digest, row.item_id, row.replica))


def send(night: SmallNight, token_ids: list[int]) -> int | None:
    """Send a live request and return its cached tokens."""

    async def once() -> int | None:
        async with open_engine(night.fleet.replica("a")) as engine:
            request = GenerationRequest(PromptBody(token_ids=token_ids), MODEL)
            return (await engine.generate(request, deadline_s=10)).cached_tokens

    return asyncio.run(once())


def test_what_was_warmed_becomes_ready_with_measured_evidence(night: SmallNight) -> None:
    rows = [night.prefix("a", night.tokens(seed, 20), order=seed) for seed in range(4)]

    summary = night.whole()

    assert summary["is_published"]
    assert summary["ready"] == summary["marks_written"] == 4
    for row in rows:
        seen = night.evidence()[key(row)]
        assert seen.residency is Residency.HIT
        assert seen.cached_tokens == seen.expected_cached_tokens == 320
        assert (seen.is_answer_equal, seen.is_control_missed) == (True, True)
        assert seen.gain_basis is GainBasis.MEASURED
        assert seen.gain_ms == pytest.approx(seen.ttft_cold_ms - seen.ttft_warm_ms)
        assert mark_of(night, row).epoch == seen.replica_epoch
    assert is_ready(night.redis, MODEL, "a", now=now()).is_ready


def test_the_same_run_twice_leaves_the_same_state(night: SmallNight) -> None:
    rows = [night.prefix("a", night.tokens(seed, 8), order=seed) for seed in range(3)]
    first = night.whole()
    marks = [mark_of(night, row).model_dump(exclude={"marked_at", "expires_at"}) for row in rows]
    twins = night.twin_rows()

    second = night.whole()

    assert {**second, "failure_share": 0.0} == {**first, "failure_share": 0.0}
    assert [mark_of(night, row).model_dump(exclude={"marked_at", "expires_at"}) for row in rows] == marks
    assert night.twin_rows() == twins


def test_seventeen_prompts_stay_whole_through_their_validation(tmp_path: Path, redis_client: redis.Redis) -> None:
    with start_double(num_gpu_blocks=1201, time_scale=0.3) as small:
        night = SmallNight(tmp_path, redis_client, {"a": small})
        for seed in range(17):
            night.prefix("a", night.tokens(seed, 62), order=seed)

        summary = night.whole()

    assert summary["ready"] == 17
    assert all(twin.cached_tokens == 0 for twin in night.twin_rows())


def test_a_prefix_shared_by_two_items_is_judged_once(night: SmallNight) -> None:
    parent = night.tokens(1, 10)
    rows = [night.prefix("a", parent, order=2), night.prefix("a", night.tokens(2, 30, after=parent), order=1)]
    night.publish_plan()
    night.publish_epochs()
    night.warm()
    night.control("a", "/reset_prefix_cache")

    summary = night.probe()

    assert summary["residency"] == {"miss": 2}
    assert night.evidence()[key(rows[0])].cached_tokens == 0
    assert night.evidence()[key(rows[1])].cached_tokens is None, "it was not asked about: its head had missed already"


def test_warm_answered_200_but_nothing_is_cached(night: SmallNight) -> None:
    rows = [night.prefix("a", night.tokens(seed, 10), order=seed) for seed in range(3)]
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    night.control("a", "/reset_prefix_cache")
    night.probe()

    summary = night.publish()

    assert {receipt.outcome for receipt in night.receipts().values()} == {"warmed"}
    assert set(night.quarantine().values()) == {Reason.RESIDENCY_MISS}
    assert not summary["is_published"]
    assert [mark_of(night, row) for row in rows] == [None] * 3


def test_ignored_salts_fail_the_validation(night: SmallNight) -> None:
    night.control("a", "/double/faults", ignore_salt=True)
    for seed in range(3):
        night.prefix("a", night.tokens(seed, 10), order=seed, cache_salt="tenant-salt", tenant="acme")

    summary = night.whole()

    assert not summary["is_published"]
    assert set(night.quarantine().values()) == {Reason.CONTROL_HIT}
    assert all(row.is_control_missed is False for row in night.evidence().values())


@pytest.mark.parametrize("details", ["absent", "null", "null_cached_tokens"])
def test_counters_speak_where_usage_does_not(night: SmallNight, details: str) -> None:
    night.control("a", "/double/faults", usage_details=details)
    for seed in range(2):
        night.prefix("a", night.tokens(seed, 10), order=seed)

    summary = night.whole()

    assert summary["ready"] == 2
    assert {row.evidence_kind for row in night.evidence().values()} == {EvidenceKind.COUNTER_DELTA}


def test_neither_usage_nor_quiet_counters_is_unverified_and_never_ready(night: SmallNight) -> None:
    night.control("a", "/double/faults", usage_details="null")
    row = night.prefix("a", night.tokens(1, 10), order=1)
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()

    async def beside_live_traffic() -> None:
        async with open_engine(night.fleet.replica("a")) as engine:

            async def live(lane: int) -> None:
                body = PromptBody(token_ids=night.tokens(100 + lane, 10))
                while True:
                    await engine.generate(GenerationRequest(body, MODEL, max_tokens=64), deadline_s=10)

            lanes = [asyncio.create_task(live(lane)) for lane in range(3)]
            await run_probes(
                night.lake, night.run, "large", night.fleet, open_engine=open_engine, redis=night.redis, now=now
            )
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    asyncio.run(beside_live_traffic())
    summary = night.publish()

    assert night.evidence()[key(row)].residency is Residency.UNVERIFIED
    assert night.quarantine() == {key(row): Reason.RESIDENCY_UNVERIFIED}
    assert summary["marks_written"] == 0


def test_a_restart_after_warming_voids_at_once(night: SmallNight) -> None:
    row = night.prefix("a", night.tokens(1, 10), order=1)
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    night.control("a", "/double/restart")
    night.publish_epochs()
    night.probe()

    summary = night.publish()

    assert night.quarantine() == {key(row): Reason.EPOCH_CHANGED}
    assert summary["readiness"]["a"] == {"planned": 1, "ready": 0, "is_ready": False}


def test_without_an_agent_nothing_is_ready(night: SmallNight) -> None:
    night.prefix("a", night.tokens(1, 10), order=1)
    night.publish_plan()
    night.twins()
    night.warm()
    night.probe()

    summary = night.publish()

    assert not summary["is_published"]
    assert set(night.quarantine().values()) == {Reason.EPOCH_UNKNOWN}


def test_a_restart_between_probe_and_publication_is_seen(night: SmallNight) -> None:
    row = night.prefix("a", night.tokens(1, 10), order=1)
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    night.probe()
    EpochStore(night.redis).begin_generation("a")
    night.publish_epochs()

    night.publish()

    assert night.evidence()[key(row)].is_ready
    assert night.quarantine() == {key(row): Reason.EPOCH_CHANGED}


def test_weights_that_change_in_mid_run_fail_on_the_version_though_probes_hit(night: SmallNight) -> None:
    rows = [night.prefix("a", night.tokens(seed, 10), order=seed) for seed in range(2)]
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    night.control("a", "/double/weights", revision="r2")
    night.probe()

    summary = night.publish()

    assert all(night.evidence()[key(row)].residency is Residency.HIT for row in rows)
    assert set(night.quarantine().values()) == {Reason.IDENTITY_CONTRADICTED}
    assert not summary["is_published"]


def test_another_dtype_than_declared_is_a_contradiction(
    double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis
) -> None:
    night = SmallNight(tmp_path, redis_client, {"a": double}, model={"dtype": "float16"})
    night.prefix("a", night.tokens(1, 10), order=1)

    night.whole()

    assert set(night.quarantine().values()) == {Reason.IDENTITY_CONTRADICTED}


def test_a_wrong_answer_on_a_hit_is_no_success(night: SmallNight) -> None:
    night.prefix("a", night.tokens(1, 10), order=1)
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    night.control("a", "/double/faults", wrong_answers="on_hit")
    night.probe()

    night.publish()

    assert set(night.quarantine().values()) == {Reason.ANSWER_DIFFERS}


def test_small_drift_is_no_other_answer(night: SmallNight) -> None:
    night.prefix("a", night.tokens(1, 10), order=1)
    night.control("a", "/double/faults", logprob_drift=0.004)

    summary = night.whole()

    assert summary["ready"] == 1


def test_warm_that_is_slower_than_cold_is_refused_with_its_stratum(night: SmallNight) -> None:
    rows = [night.prefix("a", night.tokens(seed, 10), order=seed) for seed in range(3)]
    night.control("a", "/double/faults", hit_penalty_ms=400)

    summary = night.whole()

    assert set(night.quarantine().values()) == {Reason.SLOWER_THAN_COLD}
    assert len(night.quarantine()) == len(rows)
    assert not summary["is_published"]


def test_the_gain_outside_the_sample_is_inferred(
    double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis
) -> None:
    night = SmallNight(tmp_path, redis_client, {"a": double}, policy={"twins_per_stratum": 2})
    night.control("a", "/double/restart")
    for seed in range(5):
        night.prefix("a", night.tokens(seed, 10), order=seed)

    summary = night.whole()

    bases = [row.gain_basis for row in night.evidence().values()]
    assert summary["ready"] == 5
    assert (bases.count(GainBasis.MEASURED), bases.count(GainBasis.INFERRED)) == (2, 3)


def test_a_held_out_prefix_is_neither_warmed_nor_probed(night: SmallNight) -> None:
    held = night.prefix("a", night.tokens(1, 10), order=1)
    night.prefix("a", night.tokens(2, 10), order=2)
    night.hold_out(held)

    summary = night.whole()

    seen = night.evidence()[key(held)]
    assert (seen.reason, seen.residency, seen.ttft_warm_ms) == (Reason.HOLDOUT, Residency.UNVERIFIED, None)
    assert key(held) not in night.receipts()
    assert summary["items"] == summary["ready"] == 1

    assert send(night, night.tokens(1, 10)) == 0


def test_a_failing_run_leaves_only_marks_that_are_still_true(night: SmallNight) -> None:
    good, bad = (night.prefix("a", night.tokens(seed, 10), order=seed) for seed in (1, 2))
    assert night.whole()["marks_written"] == 2
    strict = night.run.policy.model_copy(update={"max_failure_share": 0.0})
    night.run = night.run.model_copy(update={"policy": strict})
    first = mark_of(night, good)
    night.warm()
    night.control("a", "/reset_prefix_cache")
    send(night, night.tokens(1, 10))
    night.probe()

    summary = night.publish()

    assert not summary["is_published"]
    assert summary["marks_written"] == 0
    assert night.quarantine() == {key(bad): Reason.RESIDENCY_MISS}
    assert mark_of(night, good) == first
    assert mark_of(night, bad) is None


def test_marks_of_prefixes_that_may_be_evicted_are_void(night: SmallNight, tmp_path: Path) -> None:
    old = night.prefix("a", night.tokens(1, 10), order=1)
    assert night.whole()["ready"] == 1
    assert mark_of(night, old) is not None
    later = SmallNight(tmp_path / "later", night.redis, night.urls, request={"seed": 8})
    new = later.prefix("a", later.tokens(2, 10), order=1)

    summary = later.whole()

    assert summary["ready"] == 1
    assert mark_of(later, new) is not None
    assert mark_of(night, old) is None


def test_a_mark_tells_run_time_and_evidence(night: SmallNight) -> None:
    row = night.prefix("a", night.tokens(1, 10), order=1)
    night.whole()

    mark = mark_of(night, row)

    assert (mark.run_id, mark.as_of) == (night.run.run_id, AS_OF)
    assert (mark.residency, mark.evidence_kind) == (Residency.HIT, EvidenceKind.CACHED_TOKENS)
    assert mark.gain_basis is GainBasis.MEASURED
    assert (mark.expires_at - mark.marked_at).total_seconds() <= night.run.policy.mark_life_s


def test_a_replica_that_is_gone_leaves_the_other_ones_alone(
    double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis
) -> None:
    with start_double(latency={"per_token_ms": 0.3}) as gone:
        night = SmallNight(tmp_path, redis_client, {"a": double, "b": gone})
        night.control("a", "/double/restart")
        here, there = (night.prefix(name, night.tokens(1, 10), order=1) for name in "ab")
        night.publish_plan()
        night.publish_epochs()
        night.twins()
        night.warm()
    night.probe()

    night.publish()

    assert mark_of(night, here) is not None
    assert night.quarantine() == {key(there): Reason.ENGINE_UNAVAILABLE}


class TestAdapters:
    @pytest.fixture
    def adapted(self, double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis) -> SmallNight:
        folder = write_adapter(tmp_path / "support-v1")
        spec = AdapterSpec(name="support", version="1", path=str(folder), base_model=MODEL)
        night = SmallNight(tmp_path, redis_client, {"a": double}, adapters=[spec], policy={"twins_per_stratum": 1})
        night.control("a", "/double/restart")
        row = night.adapter("a", "support")
        night.prefix("a", night.tokens(1, 10), order=1, adapter="support", depends_on=[row.item_id])
        night.prefix("a", night.tokens(1, 10), order=2)
        return night

    def test_an_adapter_and_its_prefixes_become_ready(self, adapted: SmallNight) -> None:
        summary = adapted.whole()

        adapter = adapted.evidence()[key(adapted.rows[0])]
        prefix = adapted.evidence()[key(adapted.rows[1])]
        assert summary["ready"] == 3
        assert (adapter.residency, adapter.evidence_kind) == (Residency.HIT, EvidenceKind.ADAPTER_LISTING)
        assert (prefix.is_sampled, prefix.is_answer_equal) == (True, True), "each adapter is in the sample"

    def test_an_adapter_that_is_gone_at_the_probe_takes_its_prefixes_with_it(self, adapted: SmallNight) -> None:
        adapted.publish_plan()
        adapted.publish_epochs()
        adapted.twins()
        adapted.warm()
        adapted.control_text("a", "/v1/unload_lora_adapter", lora_name="support")
        adapted.probe()

        adapted.publish()

        assert adapted.quarantine() == {
            key(adapted.rows[0]): Reason.RESIDENCY_MISS,
            key(adapted.rows[1]): Reason.ENGINE_REFUSED,
        }

    def test_an_adapter_that_failed_to_load_is_no_failure_of_the_run(self, adapted: SmallNight) -> None:
        adapted.control("a", "/double/faults", runtime_adapters_off=True)

        summary = adapted.whole()

        adapted.control("a", "/double/faults", "DELETE")
        assert summary["is_published"]
        assert adapted.quarantine() == {
            key(adapted.rows[0]): Reason.ADAPTER_UPDATES_OFF,
            key(adapted.rows[1]): Reason.DEPENDENCY_FAILED,
        }
        assert mark_of(adapted, adapted.rows[2]) is not None


def test_live_traffic_shortens_a_marks_life(double: DoubleProcess, tmp_path: Path, redis_client: redis.Redis) -> None:
    night = SmallNight(tmp_path, redis_client, {"a": double})
    night.control("a", "/double/restart")
    row = night.prefix("a", night.tokens(1, 10), order=1)
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()

    async def beside_live_traffic() -> None:
        async with open_engine(night.fleet.replica("a")) as engine:

            async def live() -> None:
                for seed in count(100):
                    body = PromptBody(token_ids=night.tokens(seed, 10))
                    await engine.generate(GenerationRequest(body, MODEL), deadline_s=10)

            lane = asyncio.create_task(live())
            await run_probes(
                night.lake, night.run, "large", night.fleet, open_engine=open_engine, redis=night.redis, now=now
            )
            lane.cancel()
            await asyncio.gather(lane, return_exceptions=True)

    asyncio.run(beside_live_traffic())
    night.publish()

    meta = night.lake.meta(f"evidence/{night.run.run_id}.large")
    half_turnover_s, looked_from = meta["half_turnover_s"]["a"], datetime.fromisoformat(meta["looked_from"]["a"])
    mark = mark_of(night, row)
    assert 0 < half_turnover_s < night.run.policy.mark_life_s
    assert (mark.expires_at - looked_from).total_seconds() == pytest.approx(half_turnover_s, abs=0.001)
