"""Marks end with the epoch: nobody calls a replica ready that has lost its cache, or that nobody watches.

Everything is real here: a replica as a process, the agent as a process with its default settings, Redis.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import redis
import yaml

from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.identity import ServingIdentity
from warmup_tasks.items import EvidenceKind, GainBasis, ItemKind, Mark, Residency
from warmup_tasks.local.processes import Process, free_port, start
from warmup_tasks.serving.epochs import EpochStore
from warmup_tasks.serving.marks import MarkStore
from warmup_tasks.serving.reader import ReaderClient
from warmup_tasks.serving.readiness import ReadinessRecord, ReadinessStore

MODEL, REPLICA, ITEM = "double-base", "r0", "a" * 32
IDENTITY = ServingIdentity(model=MODEL).digest()
LIMIT_S = 15.0
LOOKS_AFTERWARDS = 2


class Site:
    """One replica, its agent, and what a reader and a probe say."""

    def __init__(self, client: redis.Redis, url: str, folder: Path, stack: ExitStack) -> None:
        self.client, self._url, self._folder, self._stack = client, url, folder, stack
        self.double = self.start_replica()
        self._port = free_port()
        fleet = {
            "models": [{"name": MODEL}],
            "replicas": [{"name": REPLICA, "url": self.double.url, "profile": "large", "model": MODEL}],
            "embedder": {"embedder": "e", "revision": "1", "dimensions": 4},
        }
        (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        self.agent = self.start_agent()

    def start_replica(self, port: int = 0) -> DoubleProcess:
        self.double = self._stack.enter_context(start_double(port, time_scale=0.0))
        return self.double

    def start_agent(self) -> Process:
        options = ["--port", str(self._port), "--fleet", str(self._folder / "fleet.yaml"), "--redis-url", self._url]
        command = [sys.executable, "-m", "warmup_tasks.agent", *options]
        self.agent = self._stack.enter_context(start("agent", command, self._folder / "agent.log"))
        self.agent.wait_until(lambda: self._get("/healthz") is not None, 20)
        return self.agent

    def publish(self) -> str:
        """Mark one item and the replica ready in the present epoch."""
        until(lambda: EpochStore(self.client).read(REPLICA) is not None, 20)
        epoch, now = EpochStore(self.client).read(REPLICA).epoch, datetime.now(UTC)
        end = now + timedelta(hours=1)
        mark = Mark(
            item_id=ITEM, kind=ItemKind.KV_PREFIX, tenant=None, replica=REPLICA, model=MODEL, adapter=None,
            identity_digest=IDENTITY, epoch=epoch, run_id="run", as_of=now, marked_at=now, expires_at=end,
            residency=Residency.HIT, evidence_kind=EvidenceKind.CACHED_TOKENS, gain_basis=GainBasis.MEASURED,
        )  # fmt: skip
        record = ReadinessRecord(
            model=MODEL, replica=REPLICA, run_id="run", as_of=now, epoch=epoch, identity_digest=IDENTITY,
            planned=1, ready=1, share=1.0, is_ready=True, expires_at=end,
        )  # fmt: skip
        MarkStore(self.client).put_many([mark], now)
        ReadinessStore(self.client).put(record, now)
        return epoch

    def says_ready(self) -> set[str]:
        """Who calls the replica ready at this moment."""
        answer = self._get("/ready", model=MODEL, replica=REPLICA)
        reader = ReaderClient(self.client).is_item_ready(None, IDENTITY, ITEM, REPLICA)
        said = {"reader"} if reader.is_ready else set()
        return said | ({"probe"} if answer is not None and answer.status_code == 200 else set())

    def looks(self) -> float:
        """How often the agent has found the replica."""
        text = self._get("/metrics").text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("warmup_agent_looks_total"))

    def _get(self, path: str, **params: str) -> httpx.Response | None:
        try:
            return httpx.get(f"http://127.0.0.1:{self._port}{path}", params=params, timeout=5)
        except httpx.TransportError:
            return None


@pytest.fixture
def site(redis_client: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        site = Site(redis_client, redis_url, tmp_path, stack)
        site.publish()
        until(lambda: site.says_ready() == {"reader", "probe"}, 5)
        yield site


def until(condition: Callable[[], bool], deadline_s: float) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s"
        time.sleep(0.05)


def stays_not_ready(site: Site) -> None:
    """Through further looks of the agent, that is with the new epoch published, nobody says ready again."""
    goal = site.looks() + LOOKS_AFTERWARDS
    while site.looks() < goal:
        assert site.says_ready() == set()
        time.sleep(0.05)
    assert EpochStore(site.client).read(REPLICA) is not None


def test_a_restarted_replica_is_not_ready(site: Site):
    port = site.double.config.port
    site.double.kill()
    site.start_replica(port)
    until(lambda: site.says_ready() == set(), LIMIT_S)
    stays_not_ready(site)
    site.publish()
    until(lambda: site.says_ready() == {"reader", "probe"}, 5)


def test_a_replica_restarted_in_place_is_not_ready(site: Site):
    httpx.post(f"{site.double.url}/double/restart", timeout=10).raise_for_status()
    until(lambda: site.says_ready() == set(), LIMIT_S)
    stays_not_ready(site)


def test_a_replica_that_is_gone_is_not_ready(site: Site):
    site.double.kill()
    until(lambda: site.says_ready() == set(), LIMIT_S)
    assert EpochStore(site.client).read(REPLICA) is None


def test_without_agent_nothing_is_ready_and_a_new_agent_trusts_what_still_holds(site: Site):
    site.agent.popen.kill()
    site.agent.popen.wait()
    until(lambda: site.says_ready() == set(), LIMIT_S)
    site.start_agent()
    until(lambda: site.says_ready() == {"reader", "probe"}, LIMIT_S)


def test_a_restart_while_there_was_no_agent_is_noticed(site: Site):
    port = site.double.config.port
    site.agent.popen.send_signal(signal.SIGTERM)
    assert site.agent.popen.wait(10) == 0
    site.double.kill()
    site.start_replica(port)
    site.start_agent()
    until(lambda: site.says_ready() == set(), LIMIT_S)
    stays_not_ready(site)


def test_an_emptied_cache_that_was_announced_is_not_ready_at_once(site: Site):
    EpochStore(site.client).begin_generation(REPLICA)
    assert site.says_ready() == set()
    stays_not_ready(site)
