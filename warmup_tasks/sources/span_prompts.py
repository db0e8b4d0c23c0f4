"""Prompts straight from the bytes of lines: the column that ``prompts.py`` names, made by compiled loops.

No format, and no rule of what is a prompt: that is told in ``spans.py`` and ``compiled/texts.py``.
"""

import hashlib
from collections.abc import Callable
from functools import cached_property

import pyarrow as pa

from warmup_tasks.sources.line_index import Written
from warmup_tasks.sources.prompts import Prompt, PromptColumn


class SpanPrompts(PromptColumn):
    """A column of prompts: as they are stored, and their digests, made when they are first asked for."""

    def __init__(self, write: Callable[[bool], Written]) -> None:
        self._write, self.stored = write, write(False)

    def __len__(self) -> int:
        return len(self.stored.is_given)

    @cached_property
    def bodies(self) -> pa.Array:
        """The prompts as they are stored."""
        return self.stored.texts()

    @cached_property
    def digests(self) -> list[str | None]:
        """Their digests."""
        content, offsets, is_given = self._write(True)
        view, bounds = memoryview(content.data), offsets.tolist()
        return [
            hashlib.sha256(view[start:end]).hexdigest() if given else None
            for start, end, given in zip(bounds, bounds[1:], is_given.tolist(), strict=False)
        ]

    def __getitem__(self, row: int) -> Prompt:
        return Prompt.stored(self.bodies[row].as_py(), self.digests[row])
