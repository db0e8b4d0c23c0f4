"""A night whose work costs nothing: real steps over a made-up demand, against engines that answer at once.

Here live the engine that does nothing and the demand of any number of items. Planning, warming, probing, publishing and
reporting are the shipped ones; ``null_steps.py`` puts these in place.
"""

import random
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.demand.tables import ADAPTERS, INTENTS, NODES, PATHS, PROMPTS, REFUSED
from warmup_tasks.engines import connect
from warmup_tasks.engines.base import (
    AdapterListing,
    Capabilities,
    Chunk,
    Engine,
    EngineMetrics,
    EngineReport,
    Generation,
    GenerationRequest,
    KvEvent,
)
from warmup_tasks.fleet_file import FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.fleets import record_fleet
from warmup_tasks.identity import digest
from warmup_tasks.items import PromptBody, ReplicaState
from warmup_tasks.lake import Lake
from warmup_tasks.lake.schemas import to_table
from warmup_tasks.runs import Run
from warmup_tasks.settings import Site

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
MODEL, BLOCK, PREFIX_BLOCKS = "null-base", 16, 2
EPOCH = "null-epoch"
PROFILES, REPLICAS_EACH = ("large", "small"), 2
"""Of the items, those on replicas; the others are stored: a vector and an answer for each prompt."""
HEAT_CELLS = pa.schema([("window_index", pa.int32()), ("bucket", pa.int32()), ("requests", pa.int64())])
PREFIX_SHARE = 0.1
ITEMS = "items="


class NullEngine(Engine):
    """Answers at once: what was warmed hits, which is what has no salt; behind a salt nothing does."""

    async def capabilities(self, *, deadline_s: float) -> Capabilities:
        return Capabilities("null", "1", (MODEL,), BLOCK, 2**31, 2**17, True, True, True, True, False, False)

    async def report(self, *, deadline_s: float) -> EngineReport:
        return EngineReport(MODEL, None, None, None, None)

    async def tokenize(self, body: PromptBody, model: str, *, deadline_s: float) -> list[int]:
        return [1]

    async def stream(self, request: GenerationRequest, *, deadline_s: float) -> AsyncGenerator[Chunk, None]:
        yield Chunk("")

    async def generate(self, request: GenerationRequest, *, deadline_s: float) -> Generation:
        tokens = len(request.body.token_ids or ()) or BLOCK + 1
        cached = 0 if request.cache_salt else (tokens - 1) // BLOCK * BLOCK
        ttft_ms = 1.0 if cached else 10.0
        said = ("ok",) * request.max_tokens
        sure = (-0.1,) * len(said)
        return Generation("ok", said, sure, (), ttft_ms, ttft_ms, tokens, cached, 1)

    async def embed(self, texts: list[str], model: str, *, deadline_s: float) -> list[list[float]]:
        raise NotImplementedError

    async def adapters(self, *, deadline_s: float) -> list[AdapterListing]:
        return []

    async def load_adapter(self, name: str, path: str, *, deadline_s: float) -> None: ...

    async def unload_adapter(self, name: str, *, deadline_s: float) -> None: ...

    async def metrics(self, *, deadline_s: float) -> EngineMetrics:
        return EngineMetrics(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, BLOCK, 2**27)

    async def reset_prefix_cache(self, *, deadline_s: float) -> bool:
        return True

    async def is_paused(self, *, deadline_s: float) -> bool | None:
        return False

    def kv_events(self) -> AsyncGenerator[KvEvent, None] | None:
        return None

    async def aclose(self) -> None: ...


def null_fleet() -> FleetFile:
    """Return two replicas of each of two profiles, all of one model."""
    return FleetFile(
        models=[ModelSpec(name=MODEL, weights_revision="r1")],
        replicas=[
            ReplicaSpec(name=f"{profile}-{n}", url=f"http://{profile}-{n}.invalid:8000", profile=profile, model=MODEL)
            for profile in PROFILES
            for n in range(REPLICAS_EACH)
        ],
        embedder=default_embedder_identity(),
    )


def exchange_engines() -> None:
    """Let this process open null engines only."""
    connect.open_engine = lambda replica: NullEngine()


def extract(site: Site, run: Run, progress: Any = None) -> dict[str, Any]:
    """Read no log."""
    Lake(site.lake_uri).publish("extractions", run.run_id, {}, meta={})
    return {}


def profile(site: Site, run: Run, progress: Any = None) -> dict[str, Any]:
    """Survey no replica; hand over a demand of as many items as the run's ``log`` says."""
    lake, fleet = Lake(site.lake_uri), record_fleet(site, run)
    states = [state_of(run, replica, fleet) for replica in fleet.replicas]
    lake.publish("replicas", run.run_id, {"replicas": to_table(states, ReplicaState)})
    items = int(run.request.log.removeprefix(ITEMS))
    prefixes = max(1, round(items * PREFIX_SHARE / len(states)))
    prompts = (items - prefixes * len(states)) // 2
    facts = {
        "refused": {}, "nodes_dropped": {}, "requests": 2 * prompts, "not_served": {}, "without_content": 0,
        "without_replica": 0,
    }  # fmt: skip
    lake.publish("demand", run.run_id, demand_tables(run.as_of, prompts, prefixes, run.request.seed), facts)
    return {"prompts": prompts, "prefixes": prefixes}


def state_of(run: Run, replica: ReplicaSpec, fleet: FleetFile) -> ReplicaState:
    """Return what a survey would have found of a replica."""
    return ReplicaState(
        run_id=run.run_id,
        replica=replica.name,
        profile=replica.profile,
        model=replica.model,
        engine="null",
        version="1",
        epoch=EPOCH,
        identity_digest=fleet.identity(replica.model).digest(),
        contradictions=[],
        block_size=BLOCK,
        capacity_tokens=2**31,
        max_model_len=2**17,
        has_usage_details=True,
        has_runtime_adapters=True,
        base_ms=5.0,
        prefill_ms_per_token=0.001,
        probe_tokens=0,
        notes=[],
    )


def demand_tables(as_of: datetime, prompts: int, prefixes: int, seed: int) -> dict[str, pa.Table]:
    """Return the demand of so many distinct prompts of a few words, and so many prefixes of two blocks."""
    drawn = random.Random(seed)
    words = ["count", "boats", "harbour", "lamp", "night", "river", "when", "does", "the", "ferry", "leave", "price"]
    asked = []
    for number in range(prompts):
        text = f"{' '.join(drawn.choices(words, k=12))} {number}"
        asked.append(
            {
                "tenant": None, "model": MODEL, "adapter": None, "cache_salt": None, "request_type": "chat",
                "prompt_sha256": digest(text), "prompt_tokens": 24, "subtree_root": None, "uses": 2, "ok_uses": 2,
                "body_json": f'{{"messages":[{{"role":"user","content":"{text}"}}]}}',
                "last_seen": as_of, "heat_slow": drawn.random(), "expected_uses": 2.0, "latency_ms": 10.0,
                "policy": "static",
            }
        )  # fmt: skip
    length = BLOCK * PREFIX_BLOCKS
    nodes = [
        {
            "node": number, "parent": -1, "path": number, "tenant": None, "model": MODEL, "adapter": None,
            "cache_salt": None, "subtree_root": f"{number:016x}", "name": f"{number:016x}", "level": 0,
            "start_tokens": 0, "end_tokens": length, "step_tokens": BLOCK, "uses": 2, "sessions": 1,
            "last_seen": as_of, "heat_fast": 1.0, "heat_slow": drawn.random(), "expected_uses": 2.0,
            "policy": "static",
        }
        for number in range(prefixes)
    ]  # fmt: skip
    paths = [{"path": n, "token_ids": drawn.choices(range(1, 32_000), k=length + 1)} for n in range(prefixes)]
    return {
        "prompts": pa.Table.from_pylist(asked, schema=PROMPTS),
        "nodes": pa.Table.from_pylist(nodes, schema=NODES),
        "paths": pa.Table.from_pylist(paths, schema=PATHS),
        "heat_cells": HEAT_CELLS.empty_table(),
        "intents": INTENTS.empty_table(),
        "adapters": ADAPTERS.empty_table(),
        "refused": REFUSED.empty_table(),
    }
