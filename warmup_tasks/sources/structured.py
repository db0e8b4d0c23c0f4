"""The base of formats whose records lie on lines as well as in tables and documents, as their users exported them.

Such a format names its nested lists and maps records; the rest is done here. No format's names.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, Self

import orjson

from warmup_tasks.sources import containers, documents, reading
from warmup_tasks.sources.base import Recognition, Sample, Source
from warmup_tasks.sources.containers import Container
from warmup_tasks.sources.nests import Nest, unfold
from warmup_tasks.sources.options import ReadOptions

_LOOKED_AT = 8
_WHOLE_BYTES = 32 * 2**20


class StructuredSource(Source):
    """A format that takes JSON lines, JSON documents, CSV and Parquet alike.

    ``nests`` are the lists of records in its documents; a document without any of them is a record itself.
    ``max_batch_bytes`` is set where a line holds a whole batch of records, and may be that long.
    """

    nests: ClassVar[tuple[Nest, ...]] = ()
    max_batch_bytes: ClassVar[int | None] = None

    def __init__(self) -> None:
        self.file: reading.LogFile | None = None

    def for_file(self, file: reading.LogFile, options: ReadOptions) -> Self:
        """Remember the file: tables and large documents are not read by lines."""
        fresh = copy.copy(self)
        fresh.file = file
        return fresh

    @property
    def is_by_line(self) -> bool:
        """Whether the file consists of lines, and none of them can hold several records."""
        has_own_records = type(self).records is not StructuredSource.records
        if self.file is None or self.nests or self.max_batch_bytes is not None or has_own_records:
            return False
        return containers.kind_of(containers.head(self.file)) is Container.LINES

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield a file's records; ``lines`` are its lines, for the case that it consists of such."""
        file = self.file
        kind = Container.LINES if file is None else containers.kind_of(containers.head(file))
        if file is None or kind is Container.LINES:
            if file is not None and self.max_batch_bytes is not None:
                lines = reading.lines(file.blocks(), self.max_batch_bytes)
            return documents.unfolded(reading.json_records(lines), self.nests)
        if kind is Container.PARQUET:
            return containers.parquet_records(file)
        if kind is Container.CSV:
            return containers.csv_records(file.blocks(), reading.MAX_LINE_BYTES)
        return documents.records(file.blocks(), self.nests, reading.MAX_LINE_BYTES, _WHOLE_BYTES)

    def vote(self, sample: Sample, is_own: Callable[[Mapping[str, Any]], bool], ground: str) -> Recognition:
        """Return the share of sampled records for which ``is_own`` holds, with the ground in words.

        A document counts as one record, and is this format's own when one of its first nested records is.
        """
        is_lines = sample.container is Container.LINES
        found = sample.records if is_lines else sample.inner
        total = len(sample.lines) if is_lines else len(found)
        matching = sum(any(map(is_own, islice(self._objects(record), _LOOKED_AT))) for record in found)
        return Recognition(matching / total if total else 0.0, f"{ground} in {matching} of {total} {sample.container}")

    def _objects(self, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return (value for value in unfold(record, self.nests) if isinstance(value, dict))


def json_value(value: Any) -> Any:
    """Return what stands as JSON text as a value, anything else as it is; text that is no JSON stays text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value
