"""Reading some rows of a Parquet file: the row groups that can hold them, and of these only the columns asked for.

What a task reads must grow with its own shard, not with the plan: so the columns that decide are read first, after the
file's statistics have left out whatever they can, and the wide columns only where a row was found.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Where = Mapping[str, Collection[str | int | bool]]


def read_rows(file: pq.ParquetFile, columns: Sequence[str] | None, where: Where) -> pa.Table:
    """Return the rows whose columns have one of the values that ``where`` names for each, in the file's order.

    Args:
        file: the file.
        columns: to return; None returns all.
        where: column → values; null is none of them.
    """
    wanted = {name: pa.array(sorted(values), file.schema_arrow.field(name).type) for name, values in where.items()}
    groups = [group for group in range(file.num_row_groups) if _may_hold(file.metadata.row_group(group), wanted)]
    if not groups:
        return file.schema_arrow.empty_table().select(columns or file.schema_arrow.names)
    deciding = file.read_row_groups(groups, columns=list(wanted))
    masks = [pc.is_in(deciding[name], value_set=values).combine_chunks() for name, values in wanted.items()]
    is_wanted = masks[0]
    for mask in masks[1:]:
        is_wanted = pc.and_(is_wanted, mask)
    lengths = [file.metadata.row_group(group).num_rows for group in groups]
    ends = np.cumsum(lengths)
    parts = [is_wanted.slice(end - length, length) for end, length in zip(ends, lengths, strict=True)]
    holding = [(group, part) for group, part in zip(groups, parts, strict=True) if part.true_count]
    if not holding:
        return file.schema_arrow.empty_table().select(columns or file.schema_arrow.names)
    found = file.read_row_groups([group for group, _ in holding], columns=None if columns is None else list(columns))
    return found.filter(pa.chunked_array([part for _, part in holding]))


def _may_hold(group: Any, wanted: Mapping[str, pa.Array]) -> bool:
    """Say whether a row group can hold a wanted row, by the smallest and largest value of each deciding column."""
    for number in range(group.num_columns):
        column = group.column(number)
        values = wanted.get(column.path_in_schema)
        if values is None:
            continue
        if not len(values):
            return False
        told = column.statistics
        if told is None or not told.has_min_max:
            continue
        if values[-1].as_py() < told.min or values[0].as_py() > told.max:
            return False
    return True
