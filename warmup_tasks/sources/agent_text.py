"""Agent text: JSON lines of timestamp (µs), input, output and session_id, the prompt standing as one text.

The input goes to the engine as a completion prompt, exactly as it stands. The log names neither model nor tenant.
"""

from collections.abc import Mapping
from typing import Any

from warmup_tasks.sources import fields, prompts
from warmup_tasks.sources.base import Mapped, Recognition, Request, Sample, Source

_FIELDS = {"timestamp", "input", "output", "session_id"}


class AgentTextSource(Source):
    """Reads agent text."""

    name = "agent-text"

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it has exactly the four fields."""
        return sample.vote(lambda record: set(record) == _FIELDS, "exactly timestamp, input, output, session_id", 0.9)

    def read_record(self, record: Mapping[str, Any]) -> Mapped:
        """Return the request; an empty input has no content and counts for timing only."""
        return Request(
            time=fields.time(record, "timestamp"),
            request_type="completion",
            session_id=fields.text(record, "session_id"),
            prompt=prompts.completion(record.get("input", ""), "input"),
            answer_text=fields.text(record, "output"),
        )
