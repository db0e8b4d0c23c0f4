from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from warmup_tasks.errors import ContractError
from warmup_tasks.lake import Lake
from warmup_tasks.lake.collect import collect

OLD, YOUNG = "20261101T020000Z-0123abcd", "20261127T020000Z-0123abcd"
LIMIT = datetime(2026, 11, 15, tzinfo=UTC)
TABLE = {"t": pa.table({"n": [1, 2]})}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "lake"))
    for run in (OLD, YOUNG):
        for dataset, partition in (("plan", run), ("evidence", f"{run}.large"), ("receipts", f"{run}.large.w0.00")):
            lake.publish(dataset, partition, TABLE)
    for dataset, partition in (("requests", "2026-11-01"), ("fingerprints", "r0"), ("tokens", "0" * 64)):
        lake.publish(dataset, partition, TABLE)
    return lake


def test_runs_that_are_old_go_and_nothing_else(lake: Lake):
    before = {dataset: lake.partitions(dataset) for dataset in ("requests", "fingerprints", "tokens")}
    preview = collect(lake, LIMIT, is_dry_run=True)
    assert lake.latest("plan", OLD) is not None
    assert collect(lake, LIMIT) == preview == [
        f"evidence/{OLD}.large", f"plan/{OLD}", f"receipts/{OLD}.large.w0.00",
    ]  # fmt: skip
    assert lake.partitions("plan") == [YOUNG]
    assert {dataset: lake.partitions(dataset) for dataset in before} == before
    assert collect(lake, LIMIT) == []
    with pytest.raises(ContractError):
        lake.read(f"plan/{OLD}", "t")


def test_a_dropped_partition_leaves_no_file_and_can_be_published_again(lake: Lake, tmp_path: Path):
    lake.publish("plan", OLD, {"t": pa.table({"n": [3]})})
    assert lake.drop("plan", OLD) == 4
    assert not [
        path for path in (tmp_path / "lake").rglob("*") if path.is_file() and OLD in str(path) and "/plan/" in str(path)
    ]
    assert lake.publish("plan", OLD, TABLE) == f"plan/{OLD}@000001"
