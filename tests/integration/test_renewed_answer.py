"""From feedback in the log to what the reader hands out: a corrected pair is renewed, and the old answer is gone.

Two nights over real parts: log, lake, Redis, an engine's double, the library's own steps in their order.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml

from warmup_tasks import nightly
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.engines.double.process import DoubleProcess, start_double
from warmup_tasks.engines.epochs import epoch_of
from warmup_tasks.engines.metrics import parse_metrics
from warmup_tasks.fleet_file import load_fleet
from warmup_tasks.items import ItemKind, PlanRow
from warmup_tasks.lake import Lake
from warmup_tasks.lake.records import read_plan
from warmup_tasks.resources import include_path
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.serving.reader import Hit, ReaderClient
from warmup_tasks.serving.values import QaValue
from warmup_tasks.settings import RunRequest, Site

MODEL, REPLICA, TENANT = "double-base", "r0", "acme"
AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
SYSTEM = {"role": "system", "content": "You answer questions about our office in one sentence. " * 4}
WORDINGS = ("Where is your office?", "where is your office", "Could you tell me where your office is?")
CORRECTION = "In Bern, since May."


class Office:
    """A site with one replica and a log that grows; ``night`` carries out every step and returns the reader's view."""

    def __init__(self, folder: Path, redis_url: str, client: redis.Redis, double: DoubleProcess) -> None:
        fleet = {
            "models": [{"name": MODEL, "weights_revision": "r1"}],
            "replicas": [{"name": REPLICA, "url": double.url, "profile": "large", "model": MODEL}],
            "embedder": default_embedder_identity().model_dump(),
        }
        (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        self.log = folder / "log.jsonl"
        self.redis, self.double = client, double
        self.site = Site(
            lake_uri=str(folder / "lake"), redis_url=redis_url, fleet_path=str(folder / "fleet.yaml"),
            profiles_path=str(include_path("profiles.yaml")), default_log=str(self.log),
        )  # fmt: skip

    def write(self, *records: dict[str, Any]) -> None:
        with self.log.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def ask(self, at: datetime) -> None:
        self.write(
            *(
                {
                    "record": "request", "time": (at + timedelta(seconds=10 * n)).isoformat(), "tenant": TENANT,
                    "model": MODEL, "messages": [SYSTEM, {"role": "user", "content": text}], "status": 200,
                    "request_id": f"{at:%d%H}-{n}", "latency_ms": 900,
                }
                for n, text in enumerate(WORDINGS * 3)
            )
        )  # fmt: skip

    def feedback(self, at: datetime, confidence: float, adopted: int, correction: str = CORRECTION) -> None:
        self.write(
            {
                "record": "feedback", "time": at.isoformat(), "tenant": TENANT, "confidence": confidence,
                "correction": correction, "adopted_count": adopted,
                "messages": [SYSTEM, {"role": "user", "content": WORDINGS[0]}],
            }
        )  # fmt: skip

    def night(self, as_of: datetime) -> QaValue:
        run = Run.of(RunRequest(as_of=as_of), parameters=None)
        run = run.model_copy(
            update={
                "parameters": run.parameters.model_copy(update={"similarity_threshold": 0.8}),
                "policy": run.policy.model_copy(update={"holdout_share": 0.0}),
            }
        )
        self._publish_epoch()
        nightly.extract(self.site, run)
        nightly.profile(self.site, run)
        nightly.plan(self.site, run)
        nightly.twins_and_waves(self.site, run)
        self._publish_epoch()
        nightly.probes_and_marks(self.site, run)
        plan = read_plan(Lake(self.site.lake_uri), run.run_id)
        (pair,) = [row for row in plan.rows if row.kind is ItemKind.QA_PAIR and row.is_chosen]
        return self._read(pair, plan.payload(pair).intent_hash or "")

    def _read(self, pair: PlanRow, intent_hash: str) -> QaValue:
        identity = load_fleet(self.site.fleet_path).identity(MODEL)
        found = ReaderClient(self.redis).qa(pair.tenant, identity, intent_hash)
        assert isinstance(found, Hit), found
        return found.value

    def _publish_epoch(self) -> None:
        epochs, text = EpochStore(self.redis), httpx.get(f"{self.double.url}/metrics").text
        generation = epochs.generation(REPLICA)
        epoch = epoch_of(parse_metrics(text), generation)
        record = EpochRecord(replica=REPLICA, epoch=epoch, observed_at=datetime.now(UTC))
        assert epochs.publish(record, generation=generation, ttl_s=15)


@pytest.fixture
def office(tmp_path: Path, redis_url: str, redis_client: redis.Redis) -> Iterator[Office]:
    with start_double(model=MODEL, num_gpu_blocks=2048) as double:
        yield Office(tmp_path, redis_url, redis_client, double)


def test_a_correction_that_was_adopted_is_what_the_reader_gets(office: Office) -> None:
    office.ask(AS_OF - timedelta(hours=6))
    first = office.night(AS_OF)
    assert first.question == WORDINGS[0]
    assert first.answer
    assert CORRECTION not in first.answer

    office.feedback(AS_OF + timedelta(hours=1), confidence=0.9, adopted=7, correction="sure of the old one")
    office.feedback(AS_OF + timedelta(hours=2), confidence=0.4, adopted=2, correction="adopted too seldom")
    office.ask(AS_OF + timedelta(hours=3))
    second = office.night(AS_OF + timedelta(hours=8))
    assert second.answer == first.answer

    office.feedback(AS_OF + timedelta(hours=9), confidence=0.4, adopted=3)
    third = office.night(AS_OF + timedelta(hours=16))
    assert (third.intent_hash, third.question) == (first.intent_hash, first.question)
    assert third.answer == CORRECTION
    stored = [office.redis.get(key) or b"" for key in office.redis.scan_iter("*qa:*")]
    assert len(stored) == 1
    assert CORRECTION.encode() in stored[0]
    assert first.answer.encode() not in stored[0]
