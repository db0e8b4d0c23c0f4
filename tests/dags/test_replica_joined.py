"""A replica joins: it is up and cold, its probe says no, the event fires, a real reactive run warms it, it says yes.

Real parts: two doubles, Redis, the agent's watch, the trigger's reader, Airflow in this process; a surge and corrected
feedback on the same site, by the library's own steps.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

from tests.dags.nights import DAGS, HOME
from warmup_tasks import nightly, reactive, renewal
from warmup_tasks.agent.http import build_app
from warmup_tasks.agent.live_watch import LiveWatch
from warmup_tasks.agent.metrics import AgentMetrics
from warmup_tasks.agent.settings import AgentSettings
from warmup_tasks.agent.watch import ReplicaWatch
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.fleet_file import load_fleet
from warmup_tasks.lake import Lake
from warmup_tasks.local.airflow_run import run_dag
from warmup_tasks.local.processes import free_port
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.events import EventKind, EventStream
from warmup_tasks.serving.reader import Hit, ReaderClient
from warmup_tasks.settings import RunRequest, Site
from warmup_tasks.signals import Crossing

MODEL = "double-base"
QUICK = {"model": MODEL, "num_gpu_blocks": 2048}
"""At the double's own pace: where a prefill takes no time, a warm one is no faster and nothing is published."""
TOPICS = ("our office", "the harbour", "trains in winter", "the library", "a small shop")
PROFILES = """
profiles:
  - {name: small, queue: gpu.small, bandwidth_gb_per_s: 300, latency_ns: 120, compute_tflops: 121}
"""


class Fleet:
    """A site with one serving replica ``r0`` and the address of ``r1``, which is not up yet; agents watch both."""

    def __init__(self, folder: Path, url: str, client: redis.Redis, serving: str) -> None:
        self.port = free_port()
        fleet = {
            "models": [{"name": MODEL, "weights_revision": "r1"}],
            "replicas": [
                {"name": name, "url": at, "profile": "small", "model": MODEL}
                for name, at in (("r0", serving), ("r1", f"http://127.0.0.1:{self.port}"))
            ],
            "embedder": default_embedder_identity().model_dump(),
        }
        (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        (folder / "profiles.yaml").write_text(PROFILES)
        self.log, self.redis = folder / "log.jsonl", client
        self.site = Site(
            lake_uri=str(folder / "lake"), redis_url=url, fleet_path=str(folder / "fleet.yaml"),
            profiles_path=str(folder / "profiles.yaml"), default_log=str(self.log),
        )  # fmt: skip
        self.spec = load_fleet(self.site.fleet_path)

    def write(self, at: datetime, *questions: str, topics: Sequence[str] = TOPICS) -> None:
        """Log the questions on every topic; a few topics may be held out to measure the effect."""
        with self.log.open("a") as file:
            for number, (topic, text) in enumerate(product(topics, questions)):
                system = {"role": "system", "content": f"You answer questions about {topic} in one sentence. " * 12}
                record = {
                    "record": "request", "time": (at + timedelta(seconds=number)).isoformat(), "tenant": "acme",
                    "model": MODEL, "messages": [system, {"role": "user", "content": text}], "status": 200,
                    "request_id": f"{at.timestamp()}-{number}", "latency_ms": 900,
                }  # fmt: skip
                file.write(json.dumps(record) + "\n")

    def night(self, as_of: datetime) -> Run:
        run = nightly.begin(self.site.lake_uri, RunRequest(as_of=as_of, replicas=["r0"], tuning_time_s=0))
        for step in (nightly.extract, nightly.profile, nightly.plan):
            step(self.site, run)
        return run

    def ready(self, replica: str) -> tuple[int, str]:
        async def ask() -> tuple[int, str]:
            surface = httpx.ASGITransport(build_app(self.redis, self.spec, AgentMetrics()))
            async with httpx.AsyncClient(transport=surface, base_url="http://agent") as probe:
                answer = await probe.get("/ready", params={"model": MODEL, "replica": replica})
                return answer.status_code, answer.json()["reason"]

        return asyncio.run(ask())

    @contextmanager
    def watched(self, *replicas: str) -> Iterator[None]:
        """Watch replicas as the agent does, from a thread, for the length of a block; begun when epochs are known."""
        stop, metrics = threading.Event(), AgentMetrics()

        async def watch(name: str) -> None:
            crossing = Crossing(500.0, AgentSettings().conditions())
            live = LiveWatch(name, MODEL, EventStream(self.redis), crossing, metrics, lambda _: True)
            async with open_engine(self.spec.replica(name)) as engine:
                agent = ReplicaWatch(name, engine, EpochStore(self.redis), AgentSettings(), metrics, live)
                while not stop.is_set():
                    await agent.look()
                    await asyncio.sleep(0.5)

        async def all_of_them() -> None:
            await asyncio.gather(*map(watch, replicas))

        thread = threading.Thread(target=lambda: asyncio.run(all_of_them()), daemon=True)
        thread.start()
        try:
            give_up_at = time.monotonic() + 20
            while not all(EpochStore(self.redis).read_many(replicas)) and time.monotonic() < give_up_at:
                time.sleep(0.02)
            yield
        finally:
            stop.set()
            thread.join(10)


@pytest.fixture
def fleet(tmp_path: Path, redis_url: str, redis_client: redis.Redis) -> Iterator[Fleet]:
    with start_double(**QUICK) as serving:
        yield Fleet(tmp_path, redis_url, redis_client, serving.url)


def given(fleet: Fleet) -> list[dict[str, Any]]:
    """What the trigger hands on of the stream now, read as it reads."""
    from warmup_tasks.airflow.triggers import EventProducer

    async def first() -> list[dict[str, Any]]:
        from warmup_tasks.serving.connection import connect

        producer = EventProducer("reactive_warmup", 0.05, lambda: connect(fleet.site.redis_url))
        stream = producer.open_stream()
        try:
            batch, ids = await anext(stream)
            await asyncio.to_thread(EventStream(fleet.redis).acknowledge, "reactive_warmup", ids)
            return list(batch["events"])
        finally:
            await stream.aclose()
            await producer.aclose()

    return asyncio.run(first())


def test_a_replica_that_joined_is_ready_after_a_reactive_run(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmup_tasks.airflow import reactions

    began = datetime.now(UTC)
    fleet.write(began - timedelta(hours=3), *["Where is it?", "Who works there?", "When does it open?"] * 4)
    with fleet.watched("r0"):
        fleet.night(began - timedelta(hours=1))
    assert {event["replica"] for event in given(fleet)} == {"r0"}

    with start_double(fleet.port, **QUICK), fleet.watched("r0", "r1"):
        status, reason = fleet.ready("r1")
        assert (status, "no run has published readiness" in reason) == (503, True)
        events = given(fleet)
        assert [(event["kind"], event["replica"]) for event in events] == [(EventKind.JOINED, "r1")]
        monkeypatch.setattr(reactions, "triggering_events", lambda: events)
        places: dict[str, Any] = {"airflow_home": HOME, "dags_folder": DAGS, "env": fleet.site.to_environment()}
        result = run_dag("reactive_warmup", {}, retry_pause=timedelta(0), **places)
        assert result.state == "success", result.error
        assert fleet.ready("r1")[0] == 200, fleet.ready("r1")
        assert fleet.ready("r0")[0] == 503, "nobody asked for it"
    plan = Lake(fleet.site.lake_uri).partitions("plan")
    assert len(plan) == 2


def test_a_surge_loads_what_was_just_asked_for_within_its_cap(fleet: Fleet) -> None:
    began = datetime.now(UTC)
    fleet.write(began - timedelta(hours=3), *["Where is it?", "Who works there?"] * 4)
    fleet.write(
        began - timedelta(seconds=60), *["Is it open?", "Is it far?"] * 5, topics=["the new branch in the harbour"]
    )
    with fleet.watched("r0"):
        fleet.night(began - timedelta(hours=1))
        run = reactive.surged_run(fleet.site, ["r0"], began)
        renewal.read_on(fleet.site, run)
        assert reactive.surge_demand(fleet.site, run)["requests"] == 10
        shards = nightly.plan(fleet.site, run)["shards"]["small"]
        told = [nightly.warm(fleet.site, run, shard) for wave in sorted(shards) for shard in shards[wave]]
    assert sum(one["outcomes"].get("warmed", 0) for one in told) >= 1
    capacity = nightly.plan(fleet.site, run)["capacity"]["r0"]
    assert 0 < capacity["chosen_blocks"] <= 0.25 * capacity["capacity_blocks"]
    paces = [one["pace"]["r0"] for one in told if "pace" in one]
    assert paces
    assert all(pace["most_in_window"] <= (pace["least_cap"] or 0) for pace in paces if pace["paced_tokens"])


def test_feedback_is_taken_up_between_two_nights(fleet: Fleet) -> None:
    began = datetime.now(UTC)
    fleet.write(began - timedelta(hours=3), *["Where is your office?", "where is your office"] * 4)
    with fleet.watched("r0"):
        night = fleet.night(began - timedelta(hours=1))
        nightly.twins_and_waves(fleet.site, night)
        nightly.probes_and_marks(fleet.site, night)
    intents = Lake(fleet.site.lake_uri).read(f"demand/{night.run_id}", "intents").to_pylist()
    reader, identity = ReaderClient(fleet.redis), fleet.spec.identity(MODEL)
    ready = [one for one in intents if isinstance(reader.qa("acme", identity, one["intent_hash"]), Hit)]
    assert len(ready) >= 2
    intent, other = ready[:2]
    feedback = {
        "record": "feedback", "time": (began - timedelta(minutes=5)).isoformat(), "tenant": "acme", "confidence": 0.4,
        "correction": "In Bern, since May.", "adopted_count": 3, "intent_hash": intent["intent_hash"],
    }  # fmt: skip
    with fleet.log.open("a") as file:
        file.write(json.dumps(feedback) + "\n")

    run = renewal.corrected_pairs(fleet.site, began)
    renewal.read_on(fleet.site, run)
    assert renewal.void_outdated(fleet.site, run) == {"due": 1, "voided": 1}
    assert not isinstance(reader.qa("acme", identity, intent["intent_hash"]), Hit), "the old answer is gone first"
    assert isinstance(reader.qa("acme", identity, other["intent_hash"]), Hit)
    with fleet.watched("r0"):
        nightly.profile(fleet.site, run)
        assert nightly.plan(fleet.site, run)["counts"] == {"embedding": 1, "qa_pair": 1}
        nightly.twins_and_waves(fleet.site, run)
        nightly.probes_and_marks(fleet.site, run)
    found = reader.qa("acme", identity, intent["intent_hash"])
    assert isinstance(found, Hit)
    assert found.value.answer == "In Bern, since May."
    assert renewal.void_outdated(fleet.site, renewal.corrected_pairs(fleet.site, began)) == {"due": 0, "voided": 0}
