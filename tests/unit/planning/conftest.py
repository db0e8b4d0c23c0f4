"""A hand-made demand for the planning tests: rows of the demand tables, published to a lake in a folder."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from warmup_tasks.demand import tables
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.fleet_file import AdapterSpec, FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.identity import digest
from warmup_tasks.items import PlanRow, ReplicaState
from warmup_tasks.lake.schemas import from_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.planning import make_plan
from warmup_tasks.runs import Run
from warmup_tasks.settings import HardwareProfile, RunPolicy, RunRequest

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
BLOCK = 16


@pytest.fixture
def lake(tmp_path: Any) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def profiles() -> list[HardwareProfile]:
    return [
        HardwareProfile(name=name, queue=f"gpu.{name}", bandwidth_gb_per_s=300, latency_ns=120, compute_tflops=121)
        for name in ("large", "small")
    ]


@pytest.fixture
def fleet() -> FleetFile:
    names = (("large-0", "large"), ("large-1", "large"), ("small-0", "small"))
    return FleetFile(
        models=[ModelSpec(name="m", weights_revision="r1")],
        replicas=[ReplicaSpec(name=name, url=f"http://{name}", profile=p, model="m") for name, p in names],
        adapters=[
            AdapterSpec(name=name, version="1", path=f"/adapters/{name}", base_model="m") for name in ("legal", "med")
        ],
        embedder=default_embedder_identity(),
    )


@pytest.fixture
def replicas(fleet: FleetFile) -> list[ReplicaState]:
    return [
        ReplicaState(
            run_id="survey",
            replica=spec.name,
            profile=spec.profile,
            model="m",
            engine="double",
            version="0",
            epoch="e1",
            identity_digest=fleet.identity("m").digest(),
            contradictions=[],
            block_size=BLOCK,
            capacity_tokens=16_000,
            max_model_len=4096,
            has_usage_details=True,
            has_runtime_adapters=True,
            base_ms=10.0,
            prefill_ms_per_token=0.5,
            probe_tokens=8,
            notes=[],
        )
        for spec in fleet.replicas
    ]


@pytest.fixture
def run() -> Run:
    return Run.of(RunRequest(as_of=AS_OF), RunPolicy(holdout_share=0.0), GoldenParameters(concurrency=1))


class Demand:
    """Collects demand rows with defaults; a node's tokens count up from a seed of its own, after its parent's."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {
            name: [] for name in ("nodes", "paths", "prompts", "intents", "adapters", "refused")
        }
        self.tokens: list[list[int]] = []

    def node(self, blocks: int, uses: float, parent: int = -1, **values: Any) -> int:
        number = len(self.tokens)
        before = [] if parent < 0 else self.tokens[parent]
        first = 100_000 * (number + 1)
        self.tokens.append([*before, *range(first, first + blocks * BLOCK)])
        row = {
            "node": number, "parent": parent, "path": number, "tenant": "acme", "model": "m", "adapter": None,
            "cache_salt": None, "subtree_root": f"root{number}", "name": f"name{number:03d}", "level": 0,
            "start_tokens": len(before), "end_tokens": len(self.tokens[-1]), "step_tokens": BLOCK, "uses": round(uses),
            "sessions": 1, "last_seen": AS_OF, "heat_fast": 0.0, "heat_slow": float(uses),
            "expected_uses": float(uses), "policy": "static",
        }  # fmt: skip
        self.rows["nodes"].append(row | values)
        self.rows["paths"].append({"path": number, "token_ids": [*self.tokens[-1], 7]})
        return number

    def prompt(self, name: str, uses: int = 5, **values: Any) -> None:
        row = {
            "tenant": "acme", "model": "m", "adapter": None, "cache_salt": None, "request_type": "chat",
            "prompt_sha256": digest(name), "body_json": f'{{"messages": [{{"role": "user", "content": "{name}"}}]}}',
            "prompt_tokens": 40, "subtree_root": None, "uses": uses, "ok_uses": uses, "last_seen": AS_OF,
            "heat_slow": float(uses), "expected_uses": float(uses), "latency_ms": None, "policy": "static",
        }  # fmt: skip
        self.rows["prompts"].append(row | values)

    def intent(self, name: str, uses: int = 5, **values: Any) -> None:
        row = {
            "tenant": "acme", "model": "m", "adapter": None, "cache_salt": None, "intent_hash": digest({"i": name}),
            "prompt_sha256": digest(name), "body_json": f'{{"messages": [{{"role": "user", "content": "{name}"}}]}}',
            "prompt_tokens": 40, "subtree_root": None, "member_prompts": [digest(name)], "uses": uses,
            "heat_slow": float(uses), "expected_uses": float(uses), "latency_ms": 100.0, "correction": None,
            "policy": "static",
        }  # fmt: skip
        self.rows["intents"].append(row | values)

    def adapter(self, name: str, uses: int = 5, *, is_listed: bool = True) -> None:
        heat = {"heat_slow": float(uses), "expected_uses": float(uses)}
        self.rows["adapters"].append({"model": "m", "adapter": name, "uses": uses, "is_listed": is_listed} | heat)

    def refuse(self, name: str, reason: str, **values: Any) -> None:
        row = {
            "tenant": "acme", "model": "m", "adapter": None, "cache_salt": None, "prompt_sha256": digest(name),
            "prompt_tokens": 9, "stable_tokens": 0, "uses": 3, "heat_slow": 1.0, "expected_uses": 1.0, "reason": reason,
        }  # fmt: skip
        self.rows["refused"].append(row | values)

    def publish(self, lake: Lake, run: Run) -> None:
        counts: dict[str, dict[str, int]] = {}
        for row in self.rows["refused"]:
            count = counts.setdefault(row["reason"], {"prompts": 0, "requests": 0})
            count["prompts"] += 1
            count["requests"] += row["uses"]
        schemas = {name: getattr(tables, name.upper()) for name in self.rows}
        published = {name: pa.Table.from_pylist(rows, schema=schemas[name]) for name, rows in self.rows.items()}
        facts = {
            "requests": 9,
            "not_served": {"other": 2},
            "without_content": 0,
            "without_replica": 0,
            "nodes_dropped": {},
        }
        lake.publish("demand", run.run_id, published, facts | {"refused": counts})


@pytest.fixture
def demand() -> Demand:
    return Demand()


@pytest.fixture
def plan(
    lake: Lake, run: Run, fleet: FleetFile, profiles: list[HardwareProfile], replicas: list[ReplicaState]
) -> Callable[..., tuple[list[PlanRow], dict[str, Any]]]:
    def planned(
        demand: Demand,
        states: list[ReplicaState] | None = None,
        of: Run | None = None,
        tombstones: Collection[str] = (),
    ) -> Any:
        chosen_run = of or run
        demand.publish(lake, chosen_run)
        given = replicas if states is None else states
        ref, summary = make_plan(lake, chosen_run, fleet, profiles, given, tombstones=tombstones)
        rows = from_table(lake.read(ref, "plan"), PlanRow)
        payloads = {row["payload_sha256"]: row for row in lake.read(ref, "payloads").to_pylist()}
        return rows, {"ref": ref, "payloads": payloads, **summary}

    return planned
