"""DuckDB over the lake: one statement, views over files or Arrow tables, bound parameters, Arrow out.

Each call has its own in-memory database, so no process ever waits for another one's lock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from warmup_tasks.errors import ContractError

STREAM_ROWS = 2_048


def connect(filesystem: Any | None = None, *, memory_limit: str = "2GB", spill_folder: str | None = None) -> Any:
    """Return an in-memory DuckDB connection in UTC.

    Args:
        filesystem: an fsspec file system to read from besides the local one.
        memory_limit: what DuckDB may use before it spills.
        spill_folder: where it spills to; None takes DuckDB's default.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"memory_limit": memory_limit})
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET preserve_insertion_order = true")
    connection.execute("SET enable_progress_bar = false")  # it would print into task logs
    if spill_folder is not None:
        connection.execute("SET temp_directory = $folder", {"folder": spill_folder})
    if filesystem is not None:
        connection.register_filesystem(filesystem)
    return connection


def add_view(connection: Any, name: str, source: pa.Table | Sequence[str]) -> None:
    """Give a statement an input: an Arrow table, or the addresses of Parquet files."""
    if not name.isidentifier():
        raise ContractError(f"{name!r} cannot be the name of a statement's input")
    if isinstance(source, pa.Table):
        connection.register(name, source)
    else:
        connection.read_parquet(list(source)).create_view(name)


def run(
    connection: Any,
    statement: str,
    inputs: Mapping[str, pa.Table | Sequence[str]],
    parameters: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Run one statement over named inputs and return its rows.

    Args:
        connection: from :func:`connect`.
        statement: SQL with ``$name`` parameters.
        inputs: view name → Arrow table or file addresses.
        parameters: exactly the parameters that the statement names.
    """
    for name, source in inputs.items():
        add_view(connection, name, source)
    return connection.sql(statement, params=dict(parameters or {})).to_arrow_table()


def stream(
    connection: Any, statement: str, schema: pa.Schema, parameters: Mapping[str, Any] | None = None
) -> pa.RecordBatchReader:
    """Run one statement and return its rows batch by batch, cast to ``schema``: results may exceed memory."""
    batches = connection.sql(statement, params=dict(parameters or {})).to_arrow_reader(STREAM_ROWS)
    return pa.RecordBatchReader.from_batches(schema, (batch.select(schema.names).cast(schema) for batch in batches))
