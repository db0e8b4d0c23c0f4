from datetime import UTC, datetime, timedelta

import httpx
import pytest

from warmup_tasks.agent.http import build_app
from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.serving.connection import connect
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore

FLEET = FleetFile.model_validate(
    {
        "models": [{"name": "org/m"}],
        "replicas": [
            {"name": f"r{n}", "url": f"http://127.0.0.1:{n + 1}", "profile": "large", "model": "org/m"} for n in (0, 1)
        ],
        "embedder": {"embedder": "e", "revision": "1", "dimensions": 4},
    }
)


def client_of(store):
    surface = httpx.ASGITransport(build_app(store, FLEET, AgentMetrics()))
    return httpx.AsyncClient(transport=surface, base_url="http://agent")


@pytest.fixture
def probe(redis_client):
    return client_of(redis_client)


@pytest.fixture
def ready_r0(redis_client):
    now = datetime.now(UTC)
    record = ReadinessRecord(
        model="org/m", replica="r0", run_id="run", as_of=now, epoch="e1", identity_digest="d" * 64,
        planned=4, ready=4, share=1.0, is_ready=True, expires_at=now + timedelta(hours=1),
    )  # fmt: skip
    ReadinessStore(redis_client).put(record, now)
    EpochStore(redis_client).publish(EpochRecord(replica="r0", epoch="e1", observed_at=now))


@pytest.mark.usefixtures("ready_r0")
async def test_ready_and_not_ready(probe):
    answer = await probe.get("/ready", params={"model": "org/m", "replica": "r0"})
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reason": "4 of 4 planned items are ready"})
    answer = await probe.get("/ready", params={"model": "org/m", "replica": "r1"})
    assert answer.status_code == 503
    assert answer.json()["ready"] is False
    assert "r1" in answer.json()["reason"]


@pytest.mark.parametrize("query", ["", "?model=org/m", "?replica=r0", "?model=&replica=r0"])
async def test_a_probe_that_names_nothing_is_told_how_to_ask(probe, query):
    answer = await probe.get(f"/ready{query}")
    assert answer.status_code == 400
    assert "/ready?model=NAME&replica=NAME" in answer.json()["reason"]


@pytest.mark.usefixtures("ready_r0")
async def test_metrics_say_who_is_ready(probe):
    text = (await probe.get("/metrics")).text
    assert 'warmup_is_ready{model="org/m",replica="r0"} 1.0' in text
    assert 'warmup_is_ready{model="org/m",replica="r1"} 0.0' in text


async def test_without_redis_the_agent_lives_and_nothing_is_ready():
    away = connect("redis://127.0.0.1:1/0", attempts=1, timeout_s=0.5)
    async with client_of(away) as probe:
        assert (await probe.get("/healthz")).status_code == 200
        answer = await probe.get("/ready", params={"model": "org/m", "replica": "r0"})
        assert answer.status_code == 503
        assert "Redis does not answer" in answer.json()["reason"]
        assert 'warmup_is_ready{model="org/m",replica="r0"} 0.0' in (await probe.get("/metrics")).text
