"""Every event × every kind of item: exactly what the event makes wrong falls, and no reader is given it afterwards.

Replicas, agent and Redis are processes of their own; a reader polls everything all the time. The same table is held
against the double and against the real engine.
"""

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

from tests.support import event_matrix as matrix
from tests.support.event_matrix import Matrix, until
from tests.support.small_night import MODEL, now, write_adapter
from warmup_tasks import upkeep
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import start_double
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.items import EvidenceKind
from warmup_tasks.local.processes import free_port, start
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.namespaces import Reach
from warmup_tasks.settings import Site
from warmup_tasks.validation.recheck import recheck

POLL_S = 1.0


class Stage:
    """Two replicas with their agent, and the matrix of items on them."""

    def __init__(self, folder: Path, client: redis.Redis, redis_url: str, stack: ExitStack) -> None:
        self.folder, self.client, self.redis_url, self.stack = folder, client, redis_url, stack
        self.items: Matrix
        self.restart: Callable[[], None]

    def begin(self, urls: dict[str, str], adapters: dict[str, Path], events: str | None = None) -> None:
        self.items = Matrix(self.folder, self.client, urls, adapters)
        fleet = self.items.night.fleet.model_dump(mode="json")
        if events is not None:
            fleet["replicas"][0] |= {"kv_events_endpoint": events, "kv_events_replay_endpoint": f"{events}-replay"}
        self.items.night.fleet = FleetFile.model_validate(fleet)
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        self._start_agent()
        self.items.prepare()

    @property
    def site(self) -> Site:
        return Site(
            lake_uri=str(self.folder / "lake"), redis_url=self.redis_url, fleet_path=str(self.folder / "fleet.yaml"),
            profiles_path="",
        )  # fmt: skip

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.items.night.urls['r0']}{path}", json=body or None, timeout=30).raise_for_status()

    def _start_agent(self) -> None:
        port = free_port()
        told = ["--port", str(port), "--poll-s", str(POLL_S), "--redis-url", self.redis_url]
        told += ["--fleet", str(self.folder / "fleet.yaml")]
        command = [sys.executable, "-m", "warmup_tasks.agent", *told]
        agent = self.stack.enter_context(start("agent", command, self.folder / "agent.log"))
        agent.wait_until(lambda: _answers(f"http://127.0.0.1:{port}/healthz"), 30)
        agent.wait_until(lambda: all(EpochStore(self.client).read_many(list(self.items.night.urls))), 60)


@pytest.fixture(scope="module")
def store(redis_server) -> Iterator[redis.Redis]:
    from warmup_tasks.serving.connection import connect

    client = connect(redis_server.url)
    client.flushall()
    yield client
    client.flushall()
    client.close()


@pytest.fixture(scope="module", params=["double", pytest.param("vllm", marks=pytest.mark.real_engine)])
def stage(request, tmp_path_factory, store, redis_server) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("matrix")
    with ExitStack() as stack:
        made = Stage(folder, store, redis_server.url, stack)
        store.flushall()
        (_on_double if request.param == "double" else _on_vllm)(made)
        yield made


def _on_double(stage: Stage) -> None:
    settings = {"time_scale": 0.3, "developer_mode": True, "num_gpu_blocks": 2000}
    r0, r1 = (stage.stack.enter_context(start_double(**settings)) for _ in range(2))
    paths = {name: write_adapter(stage.folder / name, name.encode()) for name in ("adapter-a", "adapter-b")}

    def restart() -> None:
        r0.kill()
        stage.stack.enter_context(start_double(r0.config.port, **settings))

    stage.restart = restart
    stage.begin({"r0": r0.url, "r1": r1.url}, paths)


def _on_vllm(stage: Stage) -> None:
    from warmup_tasks.local.vllm_cpu import make_model, start_vllm

    tiny = make_model(Path(__file__).parents[2] / "out" / "models" / "small")
    paths = {name: stage.folder / name for name in ("adapter-a", "adapter-b")}
    for name, path in paths.items():
        shutil.copytree(tiny.adapters[name], path)
    port = free_port()

    def run() -> Any:
        return stage.stack.enter_context(
            start_vllm(tiny, MODEL, stage.folder / "vllm.log", port=port, capacity_tokens=16_384, has_kv_events=True)
        )

    server = run()
    r1 = stage.stack.enter_context(start_double(time_scale=0.3))

    def restart() -> None:
        server.stop()
        run()

    stage.restart = restart
    stage.begin({"r0": server.url, "r1": r1.url}, paths, server.kv_events_endpoint)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


DECLARED = {
    "weights replaced": ({"model": MODEL, "weights_revision": "r1"}, matrix.OF_BLUE),
    "green weights replaced": ({"model": MODEL, "weights_revision": "r2"}, matrix.GREEN),
    "adapter retrained": ({"adapter": "adapter-a"}, matrix.ADAPTER_A),
    "embedder replaced": ({"embedder": "!fleet"}, matrix.OF_EMBEDDER),
    "lexicon replaced": ({"lexicon_version": "2"}, matrix.OF_OTHER_EMBEDDER),
    "tenant taken out": ({"tenant": "acme"}, {"embedding acme", "answer acme", "prefix acme"}),
    "replica taken out": ({"replica": "r1"}, matrix.ON_R1),
    "an embedding taken out": ({"item_id": "embedding"}, {"embedding", "answer base", "answer a", "pair"}),
    "an adapter taken out": ({"item_id": "adapter a on r0"}, matrix.ADAPTER_A),
    "an answer taken out": ({"item_id": "answer base"}, {"answer base"}),
    "a pair taken out": ({"item_id": "pair"}, {"pair"}),
    "a prefix taken out": ({"item_id": "prefix base"}, {"prefix base"}),
}


def test_the_night_rests_on_what_the_engine_offers(stage: Stage) -> None:
    """Events, where there are any, spare the prefixes that are no sample their probe."""
    found = Counter(seen.evidence_kind for seen in stage.items.night.evidence().values() if seen.replica == "r0")
    has_events = stage.items.night.fleet.replica("r0").kv_events_replay_endpoint is not None
    assert (found[EvidenceKind.KV_EVENTS] > 0) == has_events
    assert found[EvidenceKind.CACHED_TOKENS] > 0


def test_declared_events_void_exactly_what_they_make_wrong(stage: Stage) -> None:
    items, kept = stage.items, stage.items.keep()
    for event, (said, expected) in DECLARED.items():
        asked = {**said, **({"embedder": items.night.fleet.embedder.embedder} if "embedder" in said else {})}
        if "item_id" in said:
            asked["item_id"] = items.rows[said["item_id"]].item_id
        reach = Reach(**asked)
        preview = upkeep.invalidate(stage.site, reach, is_dry_run=True)
        assert items.held() == matrix.EVERYTHING, f"{event}: a preview changed something"
        with items.watched() as watch:
            until(lambda watch=watch: bool(watch.looks), 10)
            done = upkeep.invalidate(stage.site, reach)
            moment = time.monotonic()
            until(lambda watch=watch, moment=moment: watch.looked_after(moment), 10)
        assert items.held() == matrix.EVERYTHING - expected, event
        assert watch.given_after(moment) == matrix.EVERYTHING - expected, event
        assert watch.always_given() == matrix.EVERYTHING - expected, event
        assert (done["why"], done["item_ids"], done["values"]) == (
            preview["why"], preview["item_ids"], preview["values"],
        ), event  # fmt: skip
        assert set(done["item_ids"]) == {items.addresses()[name].item_id for name in expected}, event
        items.restore(kept)
        assert items.held() == matrix.EVERYTHING


def test_an_adapter_reloaded_in_place_is_caught_with_all_that_it_made(stage: Stage) -> None:
    items, kept = stage.items, stage.items.keep()
    path = stage.folder / "adapter-a"
    (path / "adapter_model.safetensors").write_bytes(
        (stage.folder / "adapter-b" / "adapter_model.safetensors").read_bytes()
    )
    stage.post("/v1/load_lora_adapter", lora_name="adapter-a", lora_path=str(path), load_inplace=True)
    with items.watched() as watch:
        done = _recheck(stage)
        moment = time.monotonic()
        until(lambda: watch.looked_after(moment), 10)
    assert items.held() == matrix.EVERYTHING - matrix.ADAPTER_A, done
    assert watch.given_after(moment) == matrix.EVERYTHING - matrix.ADAPTER_A
    assert watch.always_given() == matrix.EVERYTHING - matrix.ADAPTER_A
    assert set(done["r0"]["reasons"]) == {"adapter weights changed under the same path"}
    assert done["r0"]["renewed"] == len(matrix.ON_R0) - 2
    items.restore(kept)


@pytest.mark.parametrize("event", ["reset", "pause", "restart"])
def test_a_replica_that_lost_its_cache_is_noticed_in_time_and_nothing_else_falls(stage: Stage, event: str) -> None:
    items = stage.items
    items.mark_again()
    assert items.held() == matrix.EVERYTHING
    with items.watched() as watch:
        until(lambda: bool(watch.looks), 10)
        moment = time.monotonic()
        if event == "restart":
            stage.restart()
        elif event == "pause":
            stage.post("/pause?mode=abort&clear_cache=true")
            stage.post("/resume")
        else:
            assert stage.post("/reset_prefix_cache").json().get("success", True)
        until(lambda: items.held() == matrix.EVERYTHING - matrix.ON_R0, matrix.LIMIT_S)
        fallen = time.monotonic()
        until(lambda: EpochStore(stage.client).read("r0") is not None, matrix.LIMIT_S)
        published = time.monotonic()
        until(lambda: watch.looked_after(published), 10)
    assert watch.given_after(min(fallen, moment + matrix.LIMIT_S)) == matrix.EVERYTHING - matrix.ON_R0
    assert watch.always_given() == matrix.EVERYTHING - matrix.ON_R0


def _recheck(stage: Stage) -> dict[str, dict[str, Any]]:
    night = stage.items.night
    return asyncio.run(
        recheck(
            night.lake, night.fleet, open_engine=open_engine, redis=stage.client, now=now, replicas=["r0"],
            policy=night.run.policy,
        )
    )  # fmt: skip
