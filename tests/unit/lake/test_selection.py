"""Some rows of a table: the same as a filter gives, and only the row groups that hold them are read whole."""

import io
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warmup_tasks.lake import Lake
from warmup_tasks.lake.selection import read_rows

ROWS = 40
TABLE = pa.table(
    {
        "shard": [f"s{row // 10}" for row in range(ROWS)],
        "name": [None if row % 7 == 0 else f"n{row * 13 % ROWS:02d}" for row in range(ROWS)],
        "is_chosen": [row % 2 == 0 for row in range(ROWS)],
        "wide": ["x" * 100 for _ in range(ROWS)],
    }
)


class WatchedFile(pq.ParquetFile):
    """Remembers which row groups were read with which columns."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reads: list[tuple[list[int], list[str] | None]] = []

    def read_row_groups(self, groups: Any, columns: Any = None, **more: Any) -> pa.Table:
        self.reads.append((list(groups), columns))
        return super().read_row_groups(groups, columns=columns, **more)


@pytest.fixture
def file() -> WatchedFile:
    target = io.BytesIO()
    pq.write_table(TABLE, target, row_group_size=5)
    return WatchedFile(target)


@pytest.mark.parametrize(
    "where",
    [
        {"shard": ["s1"]},
        {"shard": ["s0", "s3"], "is_chosen": [True]},
        {"name": {"n13", "n26", "n39"}},
        {"name": ["nobody"]},
        {"name": []},
        {"is_chosen": [False]},
        {"shard": ["s2"], "name": ["n13"]},
    ],
)
@pytest.mark.parametrize("columns", [None, ["wide", "name"], ["shard"]])
def test_rows_are_those_that_have_the_values(
    file: WatchedFile, where: Mapping[str, Collection[str]], columns: list[str] | None
) -> None:
    rows = [row for row in TABLE.to_pylist() if all(row[name] in values for name, values in where.items())]
    kept = columns or TABLE.column_names
    assert read_rows(file, columns, where).to_pylist() == [{name: row[name] for name in kept} for row in rows]


def test_groups_without_a_wanted_row_are_not_read(file: WatchedFile) -> None:
    read_rows(file, None, {"shard": ["s1"]})
    assert file.reads == [([2, 3], ["shard"]), ([2, 3], None)]


def test_wide_columns_are_read_only_where_a_row_was_found(file: WatchedFile) -> None:
    read_rows(file, ["wide"], {"name": ["n13"]})
    (_, first), (groups, second) = file.reads
    assert (first, second, len(groups)) == (["name"], ["wide"], 1)


def test_a_lake_reads_some_rows_and_columns_of_all_files(tmp_path: Any) -> None:
    lake = Lake(str(tmp_path))
    readers = [pa.RecordBatchReader.from_batches(TABLE.schema, part.to_batches()) for part in (TABLE, TABLE.slice(5))]
    lake.publish("plan", "r", {"plan": readers})
    found = lake.read("plan/r", "plan", ["name"], {"shard": ["s0"], "is_chosen": [True]})
    assert found["name"].to_pylist() == [None, "n26", "n12", "n38", "n24", "n38", "n24"]
    assert lake.read("plan/r", "plan", ["shard"]).column_names == ["shard"]


def test_partitions_are_found_by_the_beginning_of_their_name(tmp_path: Any) -> None:
    lake = Lake(str(tmp_path))
    for name in ("a.x", "a.y", "ab.x"):
        lake.publish("receipts", name, {})
    assert lake.partitions("receipts", "a.") == ["a.x", "a.y"]
    assert lake.partitions("receipts") == ["a.x", "a.y", "ab.x"]
