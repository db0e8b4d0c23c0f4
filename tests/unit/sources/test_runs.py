"""Rows are gathered by where they stand: whatever the order asked for, whatever is held."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup_tasks.sources import runs
from warmup_tasks.sources.runs import ArrowRun, Gatherer, Order, ParquetRun, RunWriter

SCHEMA = pa.schema([("name", pa.string()), ("number", pa.int64())])


def table(prefix: str, rows: int) -> pa.Table:
    return pa.table({"name": [f"{prefix}{n}" for n in range(rows)], "number": range(rows)}, schema=SCHEMA)


@pytest.fixture(scope="module")
def gatherer(tmp_path_factory: pytest.TempPathFactory) -> Gatherer:
    folder = tmp_path_factory.mktemp("runs")
    part_bytes, runs.PART_BYTES = runs.PART_BYTES, 100
    writer = RunWriter(folder, "staged", 7, SCHEMA)
    writer.write_table(table("a", 30))
    writer.write_table(table("b", 20))
    writer.close()
    runs.PART_BYTES = part_bytes
    assert len(writer.staged.starts) > 5
    pq.write_table(table("c", 25), folder / "c.parquet", row_group_size=4)
    return Gatherer(
        {7: ArrowRun(writer.staged, SCHEMA), -1: ParquetRun(pq.ParquetFile(folder / "c.parquet"), SCHEMA)}, SCHEMA
    )


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([1, 300, 10**6]))
def test_rows_come_in_the_order_asked_for(gatherer: Gatherer, data: st.DataObject, held: int) -> None:
    expected = {7: table("a", 30).to_pylist() + table("b", 20).to_pylist(), -1: table("c", 25).to_pylist()}
    runs_of = data.draw(st.lists(st.sampled_from([7, -1]), max_size=40))
    if data.draw(st.booleans()):
        runs_of.sort()
    rows = [data.draw(st.integers(0, len(expected[run]) - 1)) for run in runs_of]
    stretch = data.draw(st.integers(0, 20))
    addresses = [(7, row) for row in range(stretch, 50)] + list(zip(runs_of, rows, strict=True))
    before, runs.HELD_BYTES = runs.HELD_BYTES, held
    try:
        found = gatherer.gather(
            np.array([run for run, _ in addresses], dtype=np.int64), np.array([row for _, row in addresses], np.int64)
        )
    finally:
        runs.HELD_BYTES = before
    assert found.to_pylist() == [expected[run][row] for run, row in addresses]
    assert found.schema == SCHEMA


def test_nothing_is_gathered_from_nowhere(gatherer: Gatherer) -> None:
    none = np.array([], dtype=np.int64)
    assert gatherer.gather(none, none).num_rows == 0


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), max_size=5), first=st.integers(0, 50), count=st.integers(1, 50))
def test_an_order_is_read_in_parts(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], first: int, count: int
) -> None:
    schema = pa.schema([("row", pa.int64())])
    rows = list(range(sum(sizes)))
    numbered = iter(rows)
    batches = [
        pa.record_batch([pa.array([next(numbered) for _ in range(size)], pa.int64())], schema=schema) for size in sizes
    ]
    order = Order(Path(tmp_path_factory.mktemp("order")) / "order.arrow", batches, schema)
    assert order.rows == len(rows)
    parts = list(order.part(first, count, 4))
    assert [row for part in parts for row in part["row"].to_pylist()] == rows[first : first + count]
    assert all(0 < part.num_rows <= 4 for part in parts)
