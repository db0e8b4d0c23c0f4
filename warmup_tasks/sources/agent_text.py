"""Agent text: JSON lines of timestamp (µs), input, output and session_id, the prompt standing as one text.

The input goes to the engine as a completion prompt, exactly as it stands. The log names neither model nor tenant.
"""

from collections.abc import Mapping
from typing import Any

from warmup_tasks.sources import prompts
from warmup_tasks.sources.base import Batch, BatchSource, Recognition, Sample

_FIELDS = {"timestamp", "input", "output", "session_id"}
_NAMES = prompts.PromptNames(messages=None, prompt="input")


class AgentTextSource(BatchSource):
    """Reads agent text."""

    name = "agent-text"

    def recognise(self, sample: Sample) -> Recognition:
        """A line belongs to this format when it has exactly the four fields."""
        return sample.vote(lambda record: set(record) == _FIELDS, "exactly timestamp, input, output, session_id", 0.9)

    def read_batch(self, batch: Batch) -> None:
        """Read requests; an empty input has no content and counts for timing only."""
        rows = batch.rows()
        kinds, prompt = rows.prompts(_kind_and_prompt, _NAMES)
        batch.take_rows(
            rows,
            time=rows.time("timestamp"),
            request_type=kinds,
            session_id=rows.text("session_id"),
            prompt=prompt,
            answer_text=rows.text("output"),
        )


def _kind_and_prompt(record: Mapping[str, Any]) -> tuple[str, prompts.Prompt]:
    return "completion", prompts.completion(record.get("input", ""), "input")
