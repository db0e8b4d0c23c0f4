"""What a shard's task reads grows with its own rows, not with the plan: many more stored items, the same prefixes."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.benchmarks import null_night
from warmup_tasks.items import ItemKind, Payload, PlanRow
from warmup_tasks.lake import Lake, records, schemas
from warmup_tasks.planning.make import make_plan
from warmup_tasks.runs import Run
from warmup_tasks.settings import RunRequest, load_profiles
from warmup_tasks.validation.night import Night
from warmup_tasks.warming.shard import warm_shard

FLEET = null_night.null_fleet()
RUN = Run.of(RunRequest(as_of=null_night.AS_OF))
PREFIXES = 40
FACTS = {
    "refused": {}, "nodes_dropped": {}, "requests": 0, "not_served": {}, "without_content": 0, "without_replica": 0,
}  # fmt: skip


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts the records that are made of stored rows."""
    counts = dict.fromkeys(("PlanRow", "Payload"), 0)

    def counted(table: Any, record: type[Any]) -> list[Any]:
        rows = schemas.from_table(table, record)
        if record in (PlanRow, Payload):
            counts[record.__name__] += len(rows)
        return rows

    monkeypatch.setattr(records, "from_table", counted)
    return counts


def planned(folder: Path, prompts: int) -> Lake:
    lake = Lake(str(folder / f"lake-{prompts}"))
    states = [null_night.state_of(RUN, replica, FLEET) for replica in FLEET.replicas]
    lake.publish("demand", RUN.run_id, null_night.demand_tables(RUN.as_of, prompts, PREFIXES, 7), FACTS)
    make_plan(lake, RUN, FLEET, load_profiles(), states)
    return lake


def warm(lake: Lake, client: redis.Redis, shard: str) -> dict[str, Any]:
    def now() -> datetime:
        return datetime.now(UTC)

    _, summary = asyncio.run(
        warm_shard(lake, RUN, shard, FLEET, open_engine=lambda _: null_night.NullEngine(), redis=client, now=now)
    )
    return summary


def test_a_replica_s_shard_reads_no_stored_items(
    made: dict[str, int], redis_client: redis.Redis, tmp_path: Path
) -> None:
    few, many = planned(tmp_path, 20), planned(tmp_path, 400)
    summary = warm(few, redis_client, "large.w3.large-0")
    of_few = dict(made)
    assert warm(many, redis_client, "large.w3.large-0") == summary
    assert {name: made[name] - of_few[name] for name in made} == of_few
    assert of_few["PlanRow"] == PREFIXES


def test_all_store_shards_together_read_each_payload_once(
    made: dict[str, int], redis_client: redis.Redis, tmp_path: Path
) -> None:
    lake = planned(tmp_path, 400)
    for profile in null_night.PROFILES:
        for number in ("00", "01"):
            warm(lake, redis_client, f"{profile}.w0.{number}")
    assert made == {"PlanRow": 400, "Payload": 400}


def test_twins_look_at_prefixes_of_their_profile_alone(made: dict[str, int], tmp_path: Path) -> None:
    night = Night.of(planned(tmp_path, 400), RUN, FLEET, "small", ItemKind.KV_PREFIX)
    assert {row.profile for row in night.plan.rows} == {"small"}
    assert made["PlanRow"] == PREFIXES * null_night.REPLICAS_EACH
