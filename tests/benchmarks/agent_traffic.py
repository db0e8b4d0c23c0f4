"""Real agent prompts for a small real engine: cut to its context, split at half of each log's time, planned and warmed.

Here lives what the benchmarks on the real engine share: the log, the engine with its fleet, and the plan by the same
code that a night uses, with the defaults of a night but for what a benchmark says. What comes after the split is the
window that plans are scored on. What is measured lives in the benchmarks.
"""

import asyncio
import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import redis as redis_client

from tests.conftest import REPOSITORY
from warmup_tasks.demand import profile
from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.demand.prefix_tree import PrefixTree, TokenSequence, block_hashes, tree_seed
from warmup_tasks.engines.base import EngineMetrics
from warmup_tasks.engines.connect import open_engine
from warmup_tasks.engines.survey import survey
from warmup_tasks.engines.tokens import tokenize_many
from warmup_tasks.errors import ConfigurationError, RejectItemError
from warmup_tasks.fleet_file import FleetFile, ModelSpec, ReplicaSpec
from warmup_tasks.items import PlanRow, PromptBody, ReplicaState
from warmup_tasks.lake import Lake
from warmup_tasks.lake.records import Plan, read_plan
from warmup_tasks.local.redis_server import RedisServer
from warmup_tasks.local.vllm_cpu import BLOCK_SIZE, VllmServer, make_model, start_vllm
from warmup_tasks.parameters import GoldenParameters
from warmup_tasks.planning import make_plan
from warmup_tasks.planning.allocation import allocate
from warmup_tasks.runs import Run
from warmup_tasks.serving.connection import connect
from warmup_tasks.settings import RunPolicy, RunRequest, load_profiles
from warmup_tasks.sources.extract import extract
from warmup_tasks.warming.shard import warm_shard

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)
LOGS = ("magagent", "miniswe")
MODEL, REPLICA, PROFILE = "bench", "bench-0", "large"
DEADLINE_S = 300.0
_CHARACTERS_PER_TOKEN = 6


@dataclass(frozen=True, slots=True)
class Logged:
    """One request: its place in time relative to the split, in s, and its prompt."""

    at_s: float
    text: str
    token_ids: list[int]
    session: str


@dataclass(slots=True)
class Bench:
    """A running engine with Redis and a lake, and what to ask of them."""

    server: VllmServer
    fleet: FleetFile
    redis: redis_client.Redis
    folder: Path

    async def metrics(self) -> EngineMetrics:
        async with open_engine(self.fleet.replicas[0]) as engine:
            return await engine.metrics(deadline_s=DEADLINE_S)

    def empty(self) -> None:
        """Leave the cache as a restart does."""
        answer = httpx.post(f"{self.server.url}/reset_prefix_cache", timeout=60)
        answer.raise_for_status()

    def plan(self, name: str, log: Sequence[Logged], parameters: GoldenParameters, capacity: float = 1.0) -> "Planned":
        """Plan on the requests before the split, as a night does; ``capacity`` multiplies what the engine reports."""
        lake = Lake(str(self.folder / f"lake-{name}"))
        path = self.folder / f"{name}.jsonl"
        with path.open("w", encoding="utf-8") as lines:
            for row in log:
                micros = int((AS_OF.timestamp() + row.at_s) * 1e6)
                record = {"timestamp": micros, "input": row.text, "output": "", "session_id": row.session}
                lines.write(json.dumps(record) + "\n")
        extract(lake, str(path), "agent-text")
        run = Run.of(RunRequest(as_of=AS_OF), RunPolicy(holdout_share=0.0), parameters)
        states = asyncio.run(self._survey(run))
        states = [s.model_copy(update={"capacity_tokens": int(s.capacity_tokens * capacity)}) for s in states]
        known = {row.text: row.token_ids for row in log}

        def tokens(prompts: list[tuple[PromptBody, str]]) -> list[list[int] | RejectItemError]:
            return [known[body.prompt or ""] for body, _ in prompts]

        profile(lake, run, self.fleet, states, tokens)
        make_plan(lake, run, self.fleet, load_profiles(), states)
        return Planned(self, lake, run, read_plan(lake, run.run_id))

    async def _survey(self, run: Run) -> list[ReplicaState]:
        found = await survey(
            self.fleet, run.run_id, {}, open_engine=open_engine, deadline_s=DEADLINE_S, seed=run.request.seed
        )
        return found.states


@dataclass(slots=True)
class Planned:
    """One plan of a bench."""

    bench: Bench
    lake: Lake
    run: Run
    plan: Plan

    @property
    def prefixes(self) -> list[PlanRow]:
        """The chosen prefixes in their order, the hottest last."""
        return sorted((r for r in self.plan.rows if r.is_chosen and r.shard.endswith(f"w3.{REPLICA}")), key=_order)

    def tokens(self, row: PlanRow) -> list[int]:
        return list(self.plan.payload(row).token_ids or [])

    def warm(self) -> dict[str, Any]:
        """Warm the prefixes by the shard that a task would carry out."""
        shard = f"{PROFILE}.w3.{REPLICA}"
        work = warm_shard(
            self.lake, self.run, shard, self.bench.fleet, open_engine=open_engine, redis=self.bench.redis, now=_now
        )
        return asyncio.run(work)[1]


@contextmanager
def real_engine(folder: Path, hidden: int, layers: int, **options: Any) -> Iterator[Bench]:
    """Start Redis and a real engine of the given size; options go to :func:`start_vllm`."""
    model = make_model(REPOSITORY / "out" / "engine" / f"llama-{hidden}x{layers}", hidden, layers)
    with (
        RedisServer() as redis_server,
        connect(redis_server.url) as redis,
        start_vllm(model, MODEL, folder / "vllm.log", **options) as server,
    ):
        events = server.kv_events_endpoint
        replica = ReplicaSpec(
            name=REPLICA,
            url=server.url,
            profile=PROFILE,
            model=MODEL,
            kv_events_endpoint=events,
            kv_events_replay_endpoint=server.kv_events_replay_endpoint,
        )
        fleet = FleetFile(
            models=[ModelSpec(name=MODEL, weights_revision="r1")],
            replicas=[replica],
            embedder=default_embedder_identity(),
        )
        yield Bench(server, fleet, redis, folder)


def read_log(bench: Bench, data: Path, max_tokens: int) -> list[Logged]:
    """Return both logs, each prompt cut to ``max_tokens``, each log split at half of its time, in the order of time."""
    rows: list[tuple[float, str, str]] = []
    for name in LOGS:
        path = data / "agent_text" / f"{name}.jsonl.gz"
        if not path.exists():
            raise ConfigurationError(f"no real log at {path}: set WARMUP_TEST_DATA to a folder that holds them")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            own = [json.loads(line) for line in lines]
        times = [row["timestamp"] / 1e6 for row in own]
        half = min(times) + (max(times) - min(times)) / 2
        rows += [
            (at - half, row["input"][: max_tokens * _CHARACTERS_PER_TOKEN], f"{name}-{row['session_id']}")
            for at, row in zip(times, own, strict=True)
            if row["input"]
        ]
    cut = asyncio.run(_cut(bench, sorted({text for _, text, _ in rows}), max_tokens))
    return sorted((Logged(at, *cut[text], session) for at, text, session in rows), key=lambda row: row.at_s)


async def _cut(bench: Bench, texts: list[str], max_tokens: int) -> dict[str, tuple[str, list[int]]]:
    """Return text → its head of at most ``max_tokens`` tokens, and their ids."""
    heads, ids = dict(zip(texts, texts, strict=True)), {}
    async with open_engine(bench.fleet.replicas[0]) as engine:
        open_texts = texts
        while open_texts:
            asked = [(PromptBody(prompt=heads[text]), MODEL) for text in open_texts]
            for text, found in zip(open_texts, await tokenize_many(engine, asked, deadline_s=DEADLINE_S), strict=True):
                if isinstance(found, RejectItemError):
                    raise found
                ids[text] = found
            open_texts = [text for text in open_texts if len(ids[text]) > max_tokens]
            for text in open_texts:
                heads[text] = heads[text][: int(len(heads[text]) * max_tokens / len(ids[text]) * 0.99)]
    return {text: (heads[text], ids[text]) for text in texts}


def blocks_of(token_ids: Sequence[int]) -> list[bytes]:
    """Return the names of a prompt's whole blocks; a name covers all tokens before it."""
    return list(block_hashes(_sequence(token_ids)))


def best_set(prompts: Sequence[list[int]], uses: Mapping[bytes, int], capacity: int) -> set[bytes]:
    """Return the blocks of known prompts that serve most uses, whole heads within a capacity in blocks."""
    sequences = [_sequence(ids) for ids in prompts]
    tree = PrefixTree.build(sequences)
    names = {int(example): list(block_hashes(sequences[example])) for example in set(tree.example.tolist())}
    runs = [
        names[int(example)][start // BLOCK_SIZE : end // BLOCK_SIZE]
        for example, start, end in zip(tree.example, tree.start_tokens, tree.end_tokens, strict=True)
    ]
    gains = [float(sum(uses[name] for name in own)) for own in runs]
    taken = allocate([int(p) for p in tree.parent], [len(own) for own in runs], gains, capacity)
    return {name for own, part in zip(runs, taken, strict=True) for name in own[:part]}


def _sequence(ids: Sequence[int]) -> TokenSequence:
    array = np.asarray(ids, dtype=np.int32)
    return TokenSequence(array, len(ids), tree_seed(MODEL, None, None), BLOCK_SIZE)


def data_folder() -> Path:
    """Return the folder with real logs."""
    return Path(os.environ.get("WARMUP_TEST_DATA") or REPOSITORY.parent / "shared" / "data")


def _order(row: PlanRow) -> int:
    return row.order


def _now() -> datetime:
    return datetime.now(UTC)
