"""Agent text: JSON lines of timestamp (µs), input, output and session_id, the prompt standing as one text.

The input goes to the engine as a completion prompt, exactly as it stands. The log names neither model nor tenant.
"""

from collections.abc import Mapping
from typing import Any

from warmup_tasks.sources import prompts
from warmup_tasks.sources.base import Batch, BatchSource, Recognition, Sample

_FIELDS = {"timestamp", "input", "output", "session_id"}


class AgentTextSource(BatchSource):
    """Reads agent text."""

    name = "agent-text"

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it has exactly the four fields."""
        return sample.vote(lambda record: set(record) == _FIELDS, "exactly timestamp, input, output, session_id", 0.9)

    def read_batch(self, batch: Batch) -> None:
        """Read requests; an empty input has no content and counts for timing only."""
        rows = batch.rows()
        batch.take_rows(
            rows,
            time=rows.time("timestamp"),
            request_type=["completion"] * len(rows),
            session_id=rows.text("session_id"),
            prompt=rows.map(_prompt, default=prompts.NO_CONTENT),
            answer_text=rows.text("output"),
        )


def _prompt(record: Mapping[str, Any]) -> prompts.Prompt:
    return prompts.completion(record.get("input", ""), "input")
