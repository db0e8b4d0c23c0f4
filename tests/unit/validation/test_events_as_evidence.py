"""KV events instead of probes, on the double with its event sockets: what they show is not asked for, and is true."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.small_night import BLOCK, MODEL, PROFILE, SmallNight, key, write_adapter
from warmup_tasks.engines.cache_picture import CachePicture
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.fleet_file import AdapterSpec, ReplicaSpec
from warmup_tasks.items import EvidenceKind, PlanRow, Reason, Residency
from warmup_tasks.validation import witness
from warmup_tasks.validation.replica_probes import ReplicaProbe

CAPACITY_BLOCKS = 200
BLOCKS = 10


@pytest.fixture
def sockets(tmp_path: Path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/old"


@pytest.fixture
def double(sockets: tuple[str, str]) -> Iterator[DoubleProcess]:
    with start_double(
        developer_mode=True,
        latency={"per_token_ms": 0.3},
        num_gpu_blocks=CAPACITY_BLOCKS + 1,
        max_model_len=CAPACITY_BLOCKS * BLOCK,
        kv_events_endpoint=sockets[0],
        kv_events_replay_endpoint=sockets[1],
    ) as process:
        yield process


@pytest.fixture
def night(
    double: DoubleProcess, sockets: tuple[str, str], tmp_path: Path, redis_client: redis.Redis
) -> Iterator[SmallNight]:
    made = made_night(double, sockets, tmp_path, redis_client)
    yield made
    made.http.close()


def made_night(double: DoubleProcess, sockets: tuple[str, str | None], folder: Path, client: redis.Redis) -> SmallNight:
    spec = AdapterSpec(name="support", version="1", path=str(write_adapter(folder / "a")), base_model=MODEL)
    replica = ReplicaSpec(
        name="a", url=double.url, profile=PROFILE, model=MODEL,
        kv_events_endpoint=sockets[0], kv_events_replay_endpoint=sockets[1],
    )  # fmt: skip
    policy = {"twins_per_stratum": 1, "max_failure_share": 0.95}
    return SmallNight(folder, client, {"a": double}, adapters=[spec], policy=policy, fleet={"replicas": [replica]})


def planned(night: SmallNight, count: int = 6) -> list[PlanRow]:
    return [night.prefix("a", night.tokens(seed, BLOCKS), order=seed) for seed in range(count)]


def warmed(night: SmallNight) -> None:
    night.publish_plan()
    night.publish_epochs()
    night.twins()
    night.warm()
    night.publish_epochs()


def asked(night: SmallNight) -> float:
    text = night.http.get(f"{night.urls['a']}/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("vllm:request_success_total"))


def flood(night: SmallNight, blocks: int) -> None:
    """Live traffic that takes so many blocks."""
    ids = night.tokens(999, blocks)
    body = {"model": MODEL, "prompt": ids, "max_tokens": 1}
    night.http.post(f"{night.urls['a']}/v1/completions", json=body).raise_for_status()


def kinds(night: SmallNight, rows: list[PlanRow]) -> dict[EvidenceKind, int]:
    found = [night.evidence()[key(row)].evidence_kind for row in rows]
    return {kind: found.count(kind) for kind in set(found)}


def test_what_events_show_is_ready_without_being_asked_for(night: SmallNight) -> None:
    adapter = night.adapter("a", "support")
    more = {"cache_salt": "of-acme", "adapter": "support", "depends_on": [adapter.item_id]}
    rows = [*planned(night), *(night.prefix("a", night.tokens(50 + n, BLOCKS), order=20 + n, **more) for n in range(3))]
    warmed(night)
    before = asked(night)
    night.probe()
    looks = asked(night) - before
    summary = night.publish()

    assert summary["ready"] == len(rows) + 1
    assert kinds(night, rows) == {EvidenceKind.KV_EVENTS: len(rows) - 2, EvidenceKind.CACHED_TOKENS: 2}
    unasked = [row for row in night.evidence().values() if row.evidence_kind is EvidenceKind.KV_EVENTS]
    assert all(row.ttft_warm_ms is None and row.cached_tokens == BLOCKS * BLOCK for row in unasked)
    samples_controls_canaries = 2 + 2 + 2 * (1 + 1) + 2
    assert looks == samples_controls_canaries


def test_what_was_evicted_before_is_asked_for_and_missing(night: SmallNight) -> None:
    rows = planned(night)
    warmed(night)
    flood(night, CAPACITY_BLOCKS - 2 * BLOCKS - 5)
    night.probe()

    found = [night.evidence()[key(row)].residency for row in rows]
    assert Residency.MISS in found
    assert found == sorted(found, key=lambda residency: residency is Residency.HIT), "the coldest are gone"
    assert all(
        night.evidence()[key(row)].evidence_kind is not EvidenceKind.KV_EVENTS
        for row, residency in zip(rows, found, strict=True)
        if residency is Residency.MISS
    )


def test_what_is_evicted_while_others_are_looked_at_is_not_ready(
    night: SmallNight, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = planned(night)
    controls = ReplicaProbe._controls

    async def after_a_flood(self: ReplicaProbe, *args: object) -> None:
        flood(night, CAPACITY_BLOCKS - 1)
        await controls(self, *args)

    monkeypatch.setattr(ReplicaProbe, "_controls", after_a_flood)
    warmed(night)
    night.probe()
    night.publish()

    assert kinds(night, rows)[EvidenceKind.KV_EVENTS] == len(rows) - 1
    assert {night.quarantine()[key(row)] for row in rows} == {Reason.MAYBE_EVICTED}


def test_live_traffic_that_evicts_nothing_raises_no_doubt(night: SmallNight, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the books alone, what others insert counts twice; events know better."""
    rows = planned(night)
    controls = ReplicaProbe._controls

    async def after_some_traffic(self: ReplicaProbe, *args: object) -> None:
        flood(night, CAPACITY_BLOCKS - 6 * BLOCKS - 40)
        await controls(self, *args)

    monkeypatch.setattr(ReplicaProbe, "_controls", after_some_traffic)
    warmed(night)
    night.probe()
    assert night.publish()["ready"] == len(rows)


def test_events_that_the_sample_contradicts_are_not_believed(
    night: SmallNight, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = planned(night)
    take = CachePicture.take
    monkeypatch.setattr(
        CachePicture, "take", lambda self, event: take(self, event) if event.kind != "removed" else None
    )
    warmed(night)
    flood(night, CAPACITY_BLOCKS - 1)
    night.probe()

    assert EvidenceKind.KV_EVENTS not in kinds(night, rows)
    assert {night.evidence()[key(row)].residency for row in rows} == {Residency.MISS}


@pytest.mark.parametrize("what", ["no replay", "deaf"])
def test_without_events_that_are_heard_everything_is_asked_for(
    double: DoubleProcess,
    sockets: tuple[str, str],
    tmp_path: Path,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    monkeypatch.setattr(witness, "_HEARD_WITHIN_S", 0.2)
    live, old = sockets
    night = made_night(double, (live, None) if what == "no replay" else (f"{live}-else", old), tmp_path, redis_client)
    rows = planned(night)
    warmed(night)
    night.probe()

    assert night.publish()["ready"] == len(rows)
    assert kinds(night, rows) == {EvidenceKind.CACHED_TOKENS: len(rows)}
    night.http.close()
