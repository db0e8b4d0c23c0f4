"""The account of an extraction, for people and for the next step: what the log holds in all, and what was read now.

Here numbers are put together; they are counted in ``tabling.py`` and ``merging.py``, and kept in ``logbook.py``.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Self

from pydantic import Field

from warmup_tasks.items import Record
from warmup_tasks.sources import registry
from warmup_tasks.sources.logbook import USES, Account


class FileRead(Record):
    """What stands in one file; ``format`` None: no known one, and ``ground`` says what came nearest.

    ``records`` counts all of them, ``records_now`` those that were read now. ``notes`` are the format's own words:
    evidence beside the requests, what is missing, what would bring it.
    """

    file: str
    format: str | None
    ground: str
    records: int
    records_now: int = 0
    notes: list[str] = Field(default_factory=list)


class ReadNow(Record):
    """What this extraction read: nothing but what was added, where the log had been read before.

    ``records`` is always the sum of the counts that follow it. A duplicate is one of a row that was read now or before.
    """

    records: int = 0
    requests_usable: int = 0
    feedback_rows: int = 0
    rows_quarantined: int = 0
    duplicates: int = 0
    not_a_request: int = 0


class ExtractionSummary(Record):
    """The account of one extraction: no prompts, no salts.

    All but ``now`` tells of what the log holds in all, whenever it was read. ``requests_read`` counts every record, and
    is always the sum of ``requests_usable``, ``feedback_rows``, ``rows_quarantined``, ``duplicates`` and
    ``not_a_request``. A row that the lake has already *from the same file and line* is usable again, not a duplicate; a
    duplicate is a row in whose place another line's row stays, be it in this log or in an overlapping one that was read
    before.
    """

    requests_read: int
    requests_usable: int
    usable_by_use: dict[str, int]
    feedback_rows: int
    rows_quarantined: int
    quarantined_by_reason: dict[str, int]
    duplicates: int
    prompts_too_long: int = 0
    not_a_request: int
    not_a_request_by_ground: dict[str, int]
    first_time: datetime | None
    last_time: datetime | None
    models: list[str]
    adapters: list[str]
    tenants: int
    salts: int
    files: list[FileRead]
    days: list[date]
    refs: list[str]
    now: ReadNow = ReadNow()

    def held(self) -> Self:
        """Return the account without what was read now: equal for equal logs, however often they were read."""
        files = [file.model_copy(update={"records_now": 0}) for file in self.files]
        return self.model_copy(update={"now": ReadNow(), "files": files})


def summarise(
    whole: Account, now: Account, known_feedback: set[str], files: list[FileRead], refs: Sequence[str]
) -> ExtractionSummary:
    """Return the summary.

    Args:
        whole: of all files together.
        now: of what was read now.
        known_feedback: digests of the feedback rows that stood in the log before.
        files: file by file.
        refs: where it went.
    """
    by_reason = sorted(whole.faults.items(), key=lambda item: (-item[1], item[0]))
    new_feedback = len(set(now.feedback_rows) - known_feedback)
    return ExtractionSummary(
        requests_read=whole.records,
        requests_usable=whole.usable,
        usable_by_use={use: whole.uses.get(use, 0) for use in USES},
        feedback_rows=len(whole.feedback_rows),
        rows_quarantined=sum(whole.faults.values()),
        quarantined_by_reason=dict(by_reason),
        duplicates=whole.requests - whole.usable + whole.feedback - len(whole.feedback_rows),
        prompts_too_long=whole.too_long,
        not_a_request=sum(whole.not_requests.values()),
        not_a_request_by_ground=whole.not_requests,
        first_time=whole.first_time,
        last_time=whole.last_time,
        models=whole.models,
        adapters=whole.adapters,
        tenants=len(whole.tenants),
        salts=len(whole.salts),
        files=files,
        days=sorted({*whole.days, *whole.feedback_days}),
        refs=list(refs),
        now=ReadNow(
            records=now.records,
            requests_usable=now.usable,
            feedback_rows=new_feedback,
            rows_quarantined=sum(now.faults.values()),
            duplicates=now.requests - now.usable + now.feedback - new_feedback,
            not_a_request=sum(now.not_requests.values()),
        ),
    )


def on_prompts(format_name: str | None, account: Account) -> list[str]:
    """Say how many requests of a file came without prompt, and what would bring it."""
    if format_name is None:
        return []
    notes, too_long = [], account.too_long
    if too_long:
        notes.append(
            f"{too_long} of {account.requests} requests: the derived prompt is longer than max_tokens; timing only"
        )
    if missing := account.without_prompt - too_long:
        hint = registry.named(format_name).hints.get("prompt", "log the request body")
        notes.append(f"{missing} of {account.requests} requests have no prompt and count for timing only: {hint}")
    return notes
