"""Arrow columns come back as the very values, whatever their type, nulls and repeats."""

import gc
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from warmup_tasks.lake.columns import rows_of, uncollected, values_of
from warmup_tasks.lake.schemas import TIMESTAMP

MOMENT = datetime(2026, 11, 27, 2, 0, 0, 123456, tzinfo=UTC)
COLUMNS = {
    "texts of their own": pa.array(["a", "b", "c", "d"]),
    "repeated texts": pa.array(["a", "a", "b", "a"]),
    "repeated texts and null": pa.array(["a", None, "a", "a"]),
    "own texts and null": pa.array(["a", None, "c", "d"]),
    "only nulls": pa.array([None] * 4, pa.string()),
    "whole numbers": pa.array([1, 2**62 + 1, -3, 4], pa.int64()),
    "whole numbers and null": pa.array([1, None, 2**62 + 1, 4], pa.int64()),
    "unsigned": pa.array([1, 2**63 + 1, 3, 4], pa.uint64()),
    "fractions": pa.array([0.1, 0.2, float("inf"), 1e300], pa.float64()),
    "fractions and null": pa.array([0.1, None, 0.1, 0.1], pa.float64()),
    "truth": pa.array([True, False, None, True], pa.bool_()),
    "moments": pa.array([MOMENT, MOMENT, None, MOMENT], TIMESTAMP),
    "lists": pa.array([["x"], [], None, ["y", "z"]], pa.list_(pa.string())),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_values_are_those_that_arrow_gives(name: str) -> None:
    column = pa.chunked_array([COLUMNS[name].slice(0, 3), COLUMNS[name].slice(3)])
    found = values_of(column)
    assert found == column.to_pylist()
    assert [type(value) for value in found] == [type(value) for value in column.to_pylist()]


def test_rows_are_those_that_arrow_gives() -> None:
    table = pa.table(COLUMNS)
    assert list(rows_of(table)) == table.to_pylist()
    assert list(rows_of(table.slice(0, 0))) == []
    assert list(rows_of(table.select([]))) == [{}] * 4


def test_equal_values_are_one_object() -> None:
    first, *rest = values_of(pa.chunked_array([["a long text"] * 5]))
    assert all(value is first for value in rest)


def test_the_collector_rests_only_inside_and_stays_off_where_it_was() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
