"""The Parquet columns of every data set that tasks hand over, with schema versions.

Records of ``items.py`` become Arrow schemas here; the bulk tables that never exist as Python objects (requests,
quarantine) are spelled out. ``docs/contracts.md`` lists them all. No reading, no writing.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import pyarrow as pa

from warmup_tasks.errors import ContractError
from warmup_tasks.items import (
    Evidence,
    Feedback,
    Fingerprint,
    Mark,
    Payload,
    PlanRow,
    Receipt,
    Record,
    ReplayRow,
    ReplicaState,
    TwinResult,
)
from warmup_tasks.lake.columns import rows_of, uncollected

RecordT = TypeVar("RecordT", bound=Record)
REQUESTS_SCHEMA = 1
TIMESTAMP = pa.timestamp("us", tz="UTC")

REQUESTS = pa.schema(
    [
        ("schema_version", pa.int32()),
        ("request_id", pa.string()),
        ("time", TIMESTAMP),
        ("tenant", pa.string()),
        ("model", pa.string()),
        ("adapter", pa.string()),
        ("cache_salt", pa.string()),
        ("request_type", pa.string()),  # chat, completion, embedding, unknown
        ("session_id", pa.string()),
        ("prompt_sha256", pa.string()),  # null where the log holds no content
        ("body_json", pa.string()),  # items.PromptBody as JSON, keys in the order they were sent; null without content
        ("is_truncated", pa.bool_()),
        ("block_hashes", pa.list_(pa.uint64())),  # research traces: hashes of the source, null otherwise
        ("block_tokens", pa.int32()),
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),  # null: not said
        ("ttft_ms", pa.float64()),
        ("latency_ms", pa.float64()),
        ("status", pa.int32()),  # HTTP status, null where unknown
        ("answer_text", pa.string()),
        ("source_format", pa.string()),
        ("source_file", pa.string()),
        ("source_line", pa.int64()),
    ]
)
"""One row a request, each once. Grain: request_id. ``time`` is UTC, when the request arrived."""

QUARANTINE = pa.schema(
    [
        ("source_file", pa.string()),
        ("source_line", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),  # names, types and positions; never content
        ("raw_sha256", pa.string()),
        ("raw_bytes", pa.int64()),
    ]
)
"""One row a record that could not be read. The record itself stays in its source file."""

_SCALARS: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: TIMESTAMP,
}


def _arrow_type(annotation: Any) -> pa.DataType:
    if get_origin(annotation) in (Union, UnionType):
        (inner,) = (a for a in get_args(annotation) if a is not NoneType)
        return _arrow_type(inner)
    if get_origin(annotation) is list:
        return pa.list_(_arrow_type(get_args(annotation)[0]))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return pa.string()
    return _SCALARS[annotation]


def schema_of(record: type[Record]) -> pa.Schema:
    """Return the Arrow schema of a record type: its fields in order, enumerations as strings."""
    return pa.schema([(name, _arrow_type(field.annotation)) for name, field in record.model_fields.items()])


FEEDBACK = schema_of(Feedback)
PLAN = schema_of(PlanRow)
PAYLOADS = schema_of(Payload)
RECEIPTS = schema_of(Receipt)
TWINS = schema_of(TwinResult)
EVIDENCE = schema_of(Evidence)
REPLICAS = schema_of(ReplicaState)
REPLAY = schema_of(ReplayRow)
FINGERPRINTS = schema_of(Fingerprint)
MARKS = schema_of(Mark)


def to_table(rows: Sequence[Record], record: type[Record]) -> pa.Table:
    """Return records as an Arrow table with the record's schema; an empty list gives an empty table."""
    schema = schema_of(record)
    columns = zip(*map(attrgetter(*schema.names), rows), strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)


def from_table(table: pa.Table, record: type[RecordT]) -> list[RecordT]:
    """Return an Arrow table as records, validated.

    Raises:
        ContractError: the rows have another schema version than this code writes.
    """
    version = record.model_fields.get("schema_version")
    if version is not None and "schema_version" in table.column_names:
        others = sorted(set(table["schema_version"].unique().to_pylist()) - {version.default})
        if others:
            raise ContractError(f"{record.__name__} rows of schema version {others}; this code reads {version.default}")
    with uncollected():
        return [record.model_validate(row) for row in rows_of(table)]
