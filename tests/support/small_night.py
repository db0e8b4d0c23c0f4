"""A night small enough for a test: a plan written by hand, real doubles, a real Redis, and the stages to call."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import redis as redis_client

from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.double.process import DoubleProcess
from warmup_tasks.engines.epochs import epoch_of
from warmup_tasks.engines.metrics import parse_metrics
from warmup_tasks.fleet_file import AdapterSpec, FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.identity import digest, prompt_digest
from warmup_tasks.items import (
    KINDS,
    Arm,
    Evidence,
    ItemKind,
    Payload,
    PlanRow,
    PromptBody,
    Reason,
    Receipt,
    TwinResult,
    item_id,
)
from warmup_tasks.lake import Lake
from warmup_tasks.lake.schemas import from_table, to_table
from warmup_tasks.runs import Run
from warmup_tasks.serving.epochs import EpochRecord, EpochStore
from warmup_tasks.settings import RunPolicy, RunRequest
from warmup_tasks.validation.probes import run_probes
from warmup_tasks.validation.publish import publish
from warmup_tasks.validation.twins import run_twins
from warmup_tasks.warming.shard import warm_shard

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
MODEL = "double-base"
PROFILE = "large"
BLOCK = 16


def now() -> datetime:
    return datetime.now(UTC)


def write_adapter(folder: Path, content: bytes = b"one", rank: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(f'{{"r": {rank}}}')
    (folder / "adapter_model.safetensors").write_bytes(content)
    return folder


class SmallNight:
    """Doubles by replica name, all of one profile."""

    def __init__(
        self,
        folder: Path,
        redis: redis_client.Redis,
        doubles: Mapping[str, DoubleProcess | str],
        *,
        adapters: Sequence[AdapterSpec] = (),
        policy: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        model: Mapping[str, Any] | None = None,
        fleet: Mapping[str, Any] | None = None,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self.redis = redis
        self.urls = {name: d if isinstance(d, str) else d.url for name, d in doubles.items()}
        self.fleet = FleetFile(
            **{
                "models": [ModelSpec(**{"name": MODEL, "weights_revision": "r1", **(model or {})})],
                "replicas": [
                    ReplicaSpec(name=name, url=url, profile=PROFILE, model=MODEL) for name, url in self.urls.items()
                ],
                "adapters": list(adapters),
                "embedder": default_embedder_identity(),
                **(fleet or {}),
            }
        )
        self.lake = Lake(str(folder / "lake"))
        self.run = Run.of(
            RunRequest(as_of=AS_OF, **(request or {})),
            RunPolicy(**{"request_deadline_s": 10, **(policy or {})}),
        )
        if parameters:
            changed = self.run.parameters.model_copy(update=dict(parameters))
            self.run = self.run.model_copy(update={"parameters": changed})
        self.opener = open_engine
        self.http = httpx.Client(timeout=10)
        self.rows: list[PlanRow] = []
        self.payloads: dict[str, Payload] = {}
        self._shards: list[str] = []

    def tokens(self, seed: int, blocks: int, after: Sequence[int] = ()) -> list[int]:
        """Whole blocks and one token more; ``after`` is a head to share (whole blocks of it)."""
        head = list(after[: len(after) // BLOCK * BLOCK])
        drawn = random.Random(seed)
        return [*head, *(drawn.randrange(1_000, 30_000) for _ in range(blocks * BLOCK - len(head) + 1))]

    def prefix(self, replica: str, token_ids: Sequence[int], order: int, **more: Any) -> PlanRow:
        expected = (len(token_ids) - 1) // BLOCK * BLOCK
        payload = Payload(
            payload_sha256=digest([list(token_ids)]),
            prompt_sha256=prompt_digest(list(token_ids)),
            token_ids=list(token_ids),
            body_json=None,
            expected_cached_tokens=expected,
        )
        tokens = {"prompt_tokens": len(token_ids), "unique_tokens": expected}
        return self._add(ItemKind.KV_PREFIX, replica, payload, order, **{**tokens, **more})

    def adapter(self, replica: str, name: str, **more: Any) -> PlanRow:
        return self._add(ItemKind.ADAPTER, replica, None, 0, **{"adapter": name, **more})

    def stored(self, kind: ItemKind, text: str, **more: Any) -> PlanRow:
        messages = [{"role": "user", "content": text}]
        body = PromptBody(messages=messages)
        payload = Payload(
            payload_sha256=digest([str(kind), text, more.get("answer_text")]),
            prompt_sha256=prompt_digest(messages),
            token_ids=None,
            body_json=body.model_dump_json(exclude_none=True),
            expected_cached_tokens=0,
            intent_hash=digest(text) if kind is ItemKind.QA_PAIR else None,
            answer_text=more.pop("answer_text", None),
        )
        return self._add(kind, None, payload, len(self.rows), **more)

    def _add(self, kind: ItemKind, replica: str | None, payload: Payload | None, order: int, **more: Any) -> PlanRow:
        adapter, tenant, salt = more.get("adapter"), more.get("tenant"), more.get("cache_salt")
        is_embedding = kind is ItemKind.EMBEDDING
        identity = self.fleet.embedder.digest() if is_embedding else self.fleet.identity(MODEL, adapter).digest()
        content = payload.payload_sha256 if payload else str(adapter)
        wave = KINDS[kind].wave
        values: dict[str, Any] = {
            "run_id": self.run.run_id,
            "as_of": AS_OF,
            "horizon_s": self.run.policy.horizon_s,
            "policy": "test",
            "parameters_version": self.run.parameters.version(),
            "seed": self.run.request.seed,
            "item_id": item_id(kind, tenant, salt, identity, content),
            "kind": kind,
            "wave": wave,
            "order": order,
            "queue": "gpu.large",
            "shard": f"{PROFILE}.w{wave}.{replica or '00'}",
            "profile": PROFILE,
            "replica": replica,
            "tenant": None,
            "cache_salt": None,
            "model": MODEL,
            "adapter": None,
            "identity_digest": identity,
            "payload_sha256": payload.payload_sha256 if payload else None,
            "depends_on": [],
            "subtree_root": None,
            "prompt_tokens": 0,
            "unique_tokens": 0,
            "heat": float(order),
            "expected_uses": 3.0,
            "expected_gain_ms": 10.0,
            "expected_cost_ms": 10.0,
            "assignment_probability": 1.0,
            "arm": Arm.WARM,
            "is_chosen": True,
            "reason": "",
        }
        row = PlanRow(**{**values, **more})
        self.rows.append(row)
        if payload:
            self.payloads[payload.payload_sha256] = payload
        return row

    def hold_out(self, row: PlanRow) -> None:
        held = row.model_copy(update={"arm": Arm.HOLDOUT, "is_chosen": False, "reason": Reason.HOLDOUT})
        self.rows = [held if known == row else known for known in self.rows]

    def publish_plan(self) -> None:
        tables = {"plan": to_table(self.rows, PlanRow), "payloads": to_table(list(self.payloads.values()), Payload)}
        self.lake.publish("plan", self.run.run_id, tables)
        self._shards = sorted({row.shard for row in self.rows}, key=lambda shard: shard.split(".")[1:])

    def publish_epochs(self, *names: str) -> dict[str, str]:
        """Do what the agent does, once: the epoch by the process start, for 15 s."""
        store, epochs = EpochStore(self.redis), {}
        for name in names or self.urls:
            metrics = parse_metrics(self.http.get(f"{self.urls[name]}/metrics").text)
            generation = store.generation(name)
            epochs[name] = epoch_of(metrics, generation)
            record = EpochRecord(replica=name, epoch=epochs[name], observed_at=now())
            store.publish(record, generation=generation, ttl_s=15)
        return epochs

    def control(self, replica: str, path: str, method: str = "POST", **body: Any) -> Any:
        """Call one of the double's own endpoints, or of the engine's developer mode."""
        answer = self.http.request(method, f"{self.urls[replica]}{path}", json=body or None)
        answer.raise_for_status()
        return answer.json()

    def control_text(self, replica: str, path: str, **body: Any) -> str:
        """Call an endpoint that answers in words."""
        answer = self.http.post(f"{self.urls[replica]}{path}", json=body)
        answer.raise_for_status()
        return answer.text

    def twins(self) -> dict[str, Any]:
        return self._call(run_twins, PROFILE, redis=self.redis, now=now)

    def warm(self, *shards: str) -> list[dict[str, Any]]:
        return [self._call(warm_shard, shard, redis=self.redis, now=now) for shard in shards or self._shards]

    def probe(self) -> dict[str, Any]:
        return self._call(run_probes, PROFILE, redis=self.redis, now=now)

    def publish(self) -> dict[str, Any]:
        return publish(self.lake, self.run, self.fleet, redis=self.redis, now=now)[1]

    def whole(self) -> dict[str, Any]:
        """Run all stages in their order, the agent at work."""
        self.publish_plan()
        self.publish_epochs()
        self.twins()
        self.warm()
        self.publish_epochs()
        self.probe()
        return self.publish()

    def receipts(self) -> dict[tuple[str, str | None], Receipt]:
        rows = self._all("receipts", Receipt)
        return {(row.item_id, row.replica): row for row in rows}

    def evidence(self) -> dict[tuple[str, str | None], Evidence]:
        return {(row.item_id, row.replica): row for row in self._all("evidence", Evidence)}

    def twin_rows(self) -> list[TwinResult]:
        return self._all("twins", TwinResult)

    def quarantine(self) -> dict[tuple[str, str | None], str]:
        rows = from_table(self.lake.read(f"marks/{self.run.run_id}", "quarantine"), Evidence)
        return {(row.item_id, row.replica): row.reason for row in rows}

    def _all(self, dataset: str, record: type[Any]) -> list[Any]:
        names = [name for name in self.lake.partitions(dataset) if name.startswith(self.run.run_id)]
        return [row for name in names for row in from_table(self.lake.read(f"{dataset}/{name}", dataset), record)]

    def _call(self, stage: Any, what: str, **more: Any) -> dict[str, Any]:
        _, summary = asyncio.run(stage(self.lake, self.run, what, self.fleet, open_engine=self.opener, **more))
        return dict(summary)


def key(row: PlanRow) -> tuple[str, str | None]:
    return row.item_id, row.replica
