"""What a format made of a batch becomes rows of the lake: requests, feedback, quarantine.

Here columns get the types of ``lake.schemas``, prompts their digests, requests without id an id. A record whose prompt
has no digest is refused here, the last place where one can be. No files, no formats.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from warmup_tasks.identity import digest
from warmup_tasks.lake.schemas import FEEDBACK, QUARANTINE, REQUESTS, REQUESTS_SCHEMA
from warmup_tasks.sources.base import DEFAULT_MODEL, Batch
from warmup_tasks.sources.columns import Column, Numbers
from warmup_tasks.sources.faults import BadRecordError
from warmup_tasks.sources.hash_prompts import HashPrompts
from warmup_tasks.sources.prompts import PromptColumn
from warmup_tasks.sources.reading import Line

STAGED_FEEDBACK = pa.schema(
    [*FEEDBACK, ("source_file", pa.string()), ("source_line", pa.int64()), ("row_sha256", pa.string())]
)
"""Feedback rows with where they stand, and a digest of the row, since they have no id."""


@dataclass
class Tally:
    """What became of the records of one file, or of a part of it."""

    requests: int = 0
    feedback: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    not_requests: Counter[str] = field(default_factory=Counter)
    without_prompt: int = 0
    too_long: int = 0

    @property
    def records(self) -> int:
        """Every record."""
        return self.requests + self.feedback + self.faults.total() + self.not_requests.total()

    def add(self, other: "Tally") -> None:
        """Count another part too."""
        self.requests += other.requests
        self.feedback += other.feedback
        self.faults.update(other.faults)
        self.not_requests.update(other.not_requests)
        self.without_prompt += other.without_prompt
        self.too_long += other.too_long


@dataclass(frozen=True)
class Tabling:
    """How requests become rows.

    Attributes:
        default_model: stands in where the log names none.
        hash_prompts: derives prompts for requests that hold block hashes only.
        is_digested: whether prompts get their digests; without them nothing can be merged.
    """

    default_model: str | None = None
    hash_prompts: HashPrompts | None = None
    is_digested: bool = True

    def requests(self, batch: Batch, numbers: Numbers, source_format: str, file: str, tally: Tally) -> pa.Table:
        """Return the requests of a batch with the columns of ``REQUESTS``; those refused here join its faults.

        Args:
            batch: after its format has read it.
            numbers: the line of each record of the batch.
            source_format: name of the format.
            file: name of the file.
            tally: counts them.
        """
        if len(batch.places) == 0:
            return REQUESTS.empty_table()
        columns, places = batch.columns, batch.places
        if self.hash_prompts is not None:
            tally.too_long += self._derive_prompts(batch, self.hash_prompts)
        prompts = columns["prompt"]
        digests = self._digests(batch) if self.is_digested else None
        ids = _array(columns.get("request_id"), len(places), pa.string())
        if self.is_digested and ids.null_count:
            ids = pa.array(self._identities(batch, ids.to_pylist()), pa.string())
        model = _array(columns.get("model"), len(places), pa.string())
        is_truncated = _array(columns.get("is_truncated"), len(places), pa.bool_())
        values: dict[str, Column | None] = {
            **columns,
            "schema_version": pa.repeat(pa.scalar(REQUESTS_SCHEMA, pa.int32()), len(places)),
            "request_id": ids,
            "model": model.fill_null(self.default_model or DEFAULT_MODEL),
            "prompt_sha256": digests,
            "body_json": prompts.bodies
            if isinstance(prompts, PromptColumn)
            else [prompt.body_json for prompt in prompts],
            "is_truncated": is_truncated.fill_null(False),
            "source_format": pa.repeat(source_format, len(places)),
            "source_file": pa.repeat(file, len(places)),
            "source_line": np.asarray(numbers)[np.asarray(places)],
        }
        table = pa.Table.from_arrays(
            [_array(values.get(name), len(places), kind) for name, kind in _KINDS], schema=REQUESTS
        )
        out = batch.out()
        if out is not None:
            table = table.filter(pa.array(~out))
        tally.requests += table.num_rows
        tally.without_prompt += table["body_json"].null_count
        return table

    def _digests(self, batch: Batch) -> list[str | None]:
        prompts = batch.columns["prompt"]
        if isinstance(prompts, PromptColumn):
            return prompts.digests
        try:
            return [prompt.sha256 for prompt in prompts]
        except BadRecordError:
            return [self._digest(batch, row) for row in range(len(batch.places))]

    def _digest(self, batch: Batch, row: int) -> str | None:
        try:
            sha256: str | None = batch.columns["prompt"][row].sha256
        except BadRecordError as error:
            batch.faults.setdefault(batch.places[row], (error.fault, error.detail))
            return None
        return sha256

    def _identities(self, batch: Batch, ids: list[str | None]) -> list[str | None]:
        """Return the ids with their gaps filled; a refused record has none."""
        out = batch.out()
        return [
            batch.request(row).identity() if known is None and (out is None or not out[row]) else known
            for row, known in enumerate(ids)
        ]

    def _derive_prompts(self, batch: Batch, rule: HashPrompts) -> int:
        """Give requests with block hashes and without prompt a derived one; return how many would be too long."""
        too_long = 0
        prompts, kinds = list(batch.columns["prompt"]), list(batch.columns["request_type"])
        block_tokens = batch.columns.get("block_tokens") or [None] * len(prompts)
        for row, (prompt, tokens) in enumerate(zip(prompts, block_tokens, strict=True)):
            if prompt.body_json is not None or tokens is None or batch.places[row] in batch.faults:
                continue
            request = batch.request(row)
            hashes = request.block_hashes if request.block_hashes is not None else []
            derived = rule.prompt(hashes, tokens, request.input_tokens, request.identity())
            if derived is None:
                too_long += 1
            else:
                prompts[row], kinds[row] = derived, "completion"
        batch.columns |= {"prompt": prompts, "request_type": kinds}
        return too_long


def feedback(batch: Batch, numbers: Sequence[int], file: str, tally: Tally) -> pa.Table:
    """Return the feedback rows of a batch with the columns of :data:`STAGED_FEEDBACK`."""
    rows = []
    for place, row in batch.feedback:
        values = row.model_dump()
        sha256 = digest({**values, "time": row.time.isoformat()})
        rows.append({**values, "source_file": file, "source_line": numbers[place], "row_sha256": sha256})
    tally.feedback += len(rows)
    return pa.Table.from_pylist(rows, schema=STAGED_FEEDBACK)


def quarantine(lines: Sequence[Line], file: str, tally: Tally) -> pa.Table:
    """Return lines that have a fault with the columns of ``QUARANTINE``; the records themselves stay in the file."""
    tally.faults.update(str(line.fault) for line in lines)
    rows = [
        {
            "source_file": file,
            "source_line": line.number,
            "reason": str(line.fault),
            "detail": line.detail,
            "raw_sha256": line.digest(),
            "raw_bytes": line.size_bytes,
        }
        for line in lines
    ]
    return pa.Table.from_pylist(rows, schema=QUARANTINE)


def refused(batch: Batch, line_of: Callable[[int], Line]) -> list[Line]:
    """Return the lines of the records that were refused, with why."""
    found = sorted(batch.faults.items())
    return [line_of(place)._replace(fault=fault, detail=detail) for place, (fault, detail) in found]


_KINDS = list(zip(REQUESTS.names, REQUESTS.types, strict=True))


def _array(values: Any, rows: int, kind: pa.DataType) -> pa.Array:
    if values is None:
        return pa.nulls(rows, kind)
    if not isinstance(values, pa.Array):
        return pa.array(values, kind)
    return values if values.type == kind else values.cast(kind)
