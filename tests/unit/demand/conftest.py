"""A small world for the demand tests: one model, two replicas, a lake in a folder, an engine that counts its calls."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from warmup_tasks.demand.embedder import default_embedder_identity
from warmup_tasks.errors import RejectItemError
from warmup_tasks.fleet_file import AdapterSpec, FleetFile, ModelSpec, ReplicaSpec, TenantSpec
from warmup_tasks.identity import prompt_digest
from warmup_tasks.items import PromptBody, ReplicaState
from warmup_tasks.lake.schemas import REQUESTS
from warmup_tasks.lake.store import Lake
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunPolicy, RunRequest

AS_OF = datetime(2026, 11, 27, 2, tzinfo=UTC)


class WordEngine:
    """Tokenises by words, one token each, roles included; refuses prompts that hold the word ``refuse-me``."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.asked = 0

    def __call__(self, prompts: list[tuple[PromptBody, str]]) -> list[list[int] | RejectItemError]:
        self.asked += len(prompts)
        answers: list[list[int] | RejectItemError] = []
        for body, _ in prompts:
            text = body.prompt or " ".join(f"{m['role']} {m['content']}" for m in body.messages or [])
            words = text.split()
            refused = "refuse-me" in words
            ids = [self.words.setdefault(word, len(self.words) + 1) for word in words]
            answers.append(RejectItemError("the engine refused") if refused else ids)
        return answers


@pytest.fixture
def engine() -> WordEngine:
    return WordEngine()


@pytest.fixture
def lake(tmp_path: Any) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def fleet() -> FleetFile:
    return FleetFile(
        models=[ModelSpec(name="m", weights_revision="r1")],
        replicas=[
            ReplicaSpec(name="large-0", url="http://large", profile="large", model="m"),
            ReplicaSpec(name="small-0", url="http://small", profile="small", model="m"),
        ],
        adapters=[AdapterSpec(name="legal", version="1", path="/adapters/legal", base_model="m")],
        tenants=[
            TenantSpec(name="logged", salt_mode="as_logged"),
            TenantSpec(name="derived", salt_mode="derived"),
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
            block_size=4,
            capacity_tokens=4000,
            max_model_len=600,
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
    return Run.of(RunRequest(as_of=AS_OF), RunPolicy(holdout_share=0.0))


def request_row(content: Any, *, age_s: float = 3600.0, **values: Any) -> dict[str, Any]:
    """Return one row of ``requests``; ``content`` is the user's question, a list of messages, or a PromptBody."""
    body = content
    if isinstance(content, str):
        body = PromptBody(messages=[{"role": "user", "content": content}])
    elif isinstance(content, list):
        body = PromptBody(messages=content)
    row = {
        "schema_version": 1,
        "time": AS_OF - timedelta(seconds=age_s),
        "tenant": "acme",
        "model": "m",
        "request_type": "chat",
        "session_id": None,
        "prompt_sha256": None,
        "body_json": None,
        "is_truncated": False,
        "status": 200,
        "source_format": "test",
    }
    if body is not None:
        row["prompt_sha256"] = prompt_digest(body.messages or body.prompt, body.tools, body.template_args)
        row["body_json"] = body.model_dump_json(exclude_none=True)
    return row | values


@pytest.fixture
def ask() -> Callable[..., dict[str, Any]]:
    return request_row


@pytest.fixture
def publish(lake: Lake) -> Callable[[list[dict[str, Any]]], None]:
    def to_days(rows: list[dict[str, Any]]) -> None:
        days: dict[str, list[dict[str, Any]]] = {}
        for number, row in enumerate(rows):
            days.setdefault(f"{row['time']:%Y-%m-%d}", []).append({"request_id": f"r{number:05d}"} | row)
        for day, of_day in days.items():
            lake.publish("requests", day, {"requests": pa.Table.from_pylist(of_day, schema=REQUESTS)})

    return to_days
