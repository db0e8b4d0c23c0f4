"""From real agent prompts to a plan, with words for tokens: what the parts of two floors make of real text."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from warmup_tasks.demand import profile
from warmup_tasks.errors import RejectItemError
from warmup_tasks.fleet_file import FleetFile
from warmup_tasks.items import PlanRow, PromptBody, Reason, ReplicaState
from warmup_tasks.lake.schemas import from_table
from warmup_tasks.lake.store import Lake
from warmup_tasks.planning import make_plan
from warmup_tasks.runs import Run
from warmup_tasks.settings import HardwareProfile, RunPolicy, RunRequest
from warmup_tasks.sources.extract import extract


def _words(prompts: list[tuple[PromptBody, str]]) -> list[list[int] | RejectItemError]:
    texts = (body.prompt or " ".join(str(m.get("content")) for m in body.messages or []) for body, _ in prompts)
    return [[crc32(word.encode()) >> 1 for word in text.split()] for text in texts]


@pytest.mark.parametrize(("name", "requests"), [("magagent", 746), ("miniswe", 402)])
def test_agent_text_gives_a_plan_that_fits(
    lake: Lake, fleet: FleetFile, profiles: list[HardwareProfile], replicas: list[ReplicaState], data_dir: Path,
    name: str, requests: int,
) -> None:  # fmt: skip
    extract(lake, str(data_dir / "agent_text" / f"{name}.jsonl.gz"))
    days = lake.partitions("requests")
    last = max(lake.read(f"requests/{day}", "requests")["time"].to_pylist()[-1] for day in days)
    run = Run.of(RunRequest(as_of=last + timedelta(microseconds=1)), RunPolicy(holdout_share=0.1))
    _, demand = profile(lake, run, fleet, replicas, _words)
    ref, summary = make_plan(lake, run, fleet, profiles, replicas)
    rows: list[Any] = from_table(lake.read(ref, "plan"), PlanRow)
    assert demand["requests"] <= requests
    assert demand["requests"] + sum(demand["not_served"].values()) > 0.9 * requests
    assert demand["refused"][Reason.TOO_LONG]["prompts"] > 0 or name == "magagent"
    assert summary["counts"]["kv_prefix"] > 0
    for use in summary["capacity"].values():
        assert 0 < use["chosen_blocks"] + use["held_out_blocks"] <= use["plan_blocks"]
    assert {r.model for r in rows} == {"m"}
