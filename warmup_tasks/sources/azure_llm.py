"""Azure LLM inference traces: CSV of TIMESTAMP, ContextTokens, GeneratedTokens, and nothing else.

Such a trace feeds the demand with times and sizes; no prompt, no hash and no model stands in it, so nothing is warmed
from it. Form: github.com/Azure/AzurePublicDataset, the LLM inference traces of 2023 and 2024.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from warmup_tasks.sources import fields, reading
from warmup_tasks.sources.base import Mapped, Recognition, Request, Sample, Source
from warmup_tasks.sources.faults import Fault
from warmup_tasks.sources.repeats import RowIds
from warmup_tasks.sources.text_lines import texts

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class AzureLLMSource(Source):
    """Reads Azure LLM inference traces."""

    name = "azure-llm"
    hints: ClassVar[Mapping[str, str]] = {
        "prompt": "the trace holds times and token counts only: it feeds the demand, and nothing is warmed from it"
    }
    is_published_trace = True

    def recognise(self, sample: Sample) -> Recognition:
        """A file is in this format when its first line names the three columns."""
        header = _header(sample.lines[0].data.decode(errors="replace")) if sample.lines else None
        return Recognition(1.0, "columns " + ", ".join(header)) if header else Recognition(0.0, "no such columns")

    def records(self, lines: Iterator[reading.Line]) -> Iterator[reading.Raw]:
        """Yield one record a row; the header is none."""
        columns, ids = list(_COLUMNS), RowIds()
        for line, text in texts(lines):
            if line.fault is not None:
                yield reading.Raw(line, {})
                continue
            if (header := _header(text)) is not None:
                columns = header
                continue
            cells = [cell.strip() for cell in text.split(",")]
            if len(cells) == len(columns):
                row = dict(zip(columns, cells, strict=True))
                yield reading.Raw(line, {**row, "request_id": ids.of(line.data, row.get("TIMESTAMP"))})
            else:
                fault = Fault.TRUNCATED_LINE if line.is_open and len(cells) < len(columns) else Fault.BAD_VALUE
                yield reading.Raw(line._replace(fault=fault, detail=f"{len(cells)} of {len(columns)} columns"), {})

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request: its time and its sizes."""
        return Request(
            time=fields.time(record, "TIMESTAMP"),
            request_id=fields.text(record, "request_id"),
            input_tokens=fields.count(record, "ContextTokens"),
            output_tokens=fields.count(record, "GeneratedTokens"),
        )


def _header(text: str) -> list[str] | None:
    columns = [column.strip() for column in text.removeprefix("\ufeff").split(",")]
    return columns if set(_COLUMNS) <= set(columns) else None
