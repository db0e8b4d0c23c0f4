"""What runs leave in Redis shows in the agent's metrics: the newest run, never an older one; NaN for the unknown."""

import asyncio
from datetime import UTC, datetime, timedelta
from math import isnan
from pathlib import Path

import httpx
import redis

from warmup_tasks.agent.http import build_app
from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.fleet_file import FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.lake import Lake
from warmup_tasks.reporting.summary import summarise
from warmup_tasks.reporting.told import run_figures
from warmup_tasks.runs import Run
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore
from warmup_tasks.serving.run_figures import RunFigures, RunFiguresStore
from warmup_tasks.settings import RunRequest

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
NOW = datetime(2026, 11, 27, 3, tzinfo=UTC)
FLEET = FleetFile(
    models=[ModelSpec(name="m")],
    replicas=[ReplicaSpec(name="a", url="http://a:1", profile="large", model="m")],
    embedder=default_embedder_identity(),
)


def figures(as_of: datetime = AS_OF, **changed: object) -> RunFigures:
    values = {
        "run_id": "r", "as_of": as_of, "reported_at": NOW, "is_published": True, "planned": 10, "ready": 9,
        "failure_share": 0.1, "hit_ratio_cold": 0.7, "hit_ratio_warm": None, "ttft_cold_ms": 50.0,
        "ttft_warm_ms": 5.0, "prefill_warming_tokens": 1000, "prefill_validation_tokens": 200,
    }  # fmt: skip
    return RunFigures.model_validate({**values, **changed})


def scraped(client: redis.Redis) -> dict[str, float]:
    async def ask() -> str:
        surface = httpx.ASGITransport(build_app(client, FLEET, AgentMetrics()))
        async with httpx.AsyncClient(transport=surface, base_url="http://agent") as http:
            return (await http.get("/metrics")).text

    lines = asyncio.run(ask()).splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_the_newest_run_and_readiness_are_shown(redis_client: redis.Redis) -> None:
    RunFiguresStore(redis_client).put(figures())
    record = ReadinessRecord(
        model="m", replica="a", run_id="r", as_of=AS_OF, epoch="e", identity_digest="d", planned=4, ready=3,
        share=0.75, is_ready=True, expires_at=datetime.now(UTC) + timedelta(hours=1),
    )  # fmt: skip
    ReadinessStore(redis_client).put(record, datetime.now(UTC))
    shown = scraped(redis_client)
    assert shown["warmup_run_is_published"] == 1
    assert shown["warmup_run_as_of_timestamp_seconds"] == AS_OF.timestamp()
    assert shown["warmup_run_reported_timestamp_seconds"] == NOW.timestamp()
    assert shown['warmup_run_items{state="ready"}'] == 9
    assert shown['warmup_run_block_hit_ratio{arm="cold"}'] == 0.7
    assert isnan(shown['warmup_run_block_hit_ratio{arm="warm"}'])
    assert shown['warmup_run_ttft_p50_ms{arm="warm"}'] == 5
    assert shown['warmup_run_prefill_tokens{purpose="validation"}'] == 200
    assert shown['warmup_ready_ratio{model="m",replica="a"}'] == 0.75


def test_without_a_run_nothing_is_claimed(redis_client: redis.Redis) -> None:
    shown = scraped(redis_client)
    told = {name: value for name, value in shown.items() if name.startswith("warmup_run_")}
    assert len(told) == 12
    assert all(isnan(value) for value in told.values())
    assert not [name for name in shown if name.startswith("warmup_ready_ratio")]


def test_an_older_plan_never_replaces_a_newer_one(redis_client: redis.Redis) -> None:
    store = RunFiguresStore(redis_client)
    assert store.put(figures(ready=9))
    assert not store.put(figures(AS_OF - timedelta(days=1), ready=1))
    assert store.put(figures(ready=8)), "the same plan's report, written again"
    kept = store.read()
    assert kept is not None
    assert kept.ready == 8


def test_a_run_that_stopped_early_has_figures_too(redis_client: redis.Redis, tmp_path: Path) -> None:
    summary = summarise(Lake(str(tmp_path)), Run.of(RunRequest(as_of=AS_OF)))
    RunFiguresStore(redis_client).put(run_figures(summary, NOW))
    kept = RunFiguresStore(redis_client).read()
    assert kept is not None
    assert (kept.planned, kept.is_published) == (None, None)
