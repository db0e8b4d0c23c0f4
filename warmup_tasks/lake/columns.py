"""Arrow columns as Python values and back, a column at a time: what a million records cost is decided here.

Cell by cell, Arrow makes a scalar of its own for each value, and records by the hundred thousand make Python's garbage
collector look through them again and again, although they hold no circle. No meaning of any column is known here.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

_REPEATED_SHARE = 0.5  # of a column's values; where fewer are repeats, sharing them costs more than it saves


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values; equal ones are one object where many are, so that they take memory once."""
    kind = column.type
    if pa.types.is_nested(kind):
        return list(column.to_pylist())
    if column.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return list(column.to_numpy().tolist())
    coded = column.combine_chunks().dictionary_encode()
    if len(coded.dictionary) <= _REPEATED_SHARE * len(column):
        known = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
        return list(known[coded.indices.fill_null(len(known) - 1).to_numpy()].tolist())
    if pa.types.is_string(kind):
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield a table's rows, as ``to_pylist`` returns them."""
    names = table.column_names
    if not names:
        return iter([{}] * table.num_rows)
    columns = [values_of(table[name]) for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's garbage collector rest while many records are made; reference counts free what is dropped."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
