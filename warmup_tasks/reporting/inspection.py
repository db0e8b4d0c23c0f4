"""What a log holds and lacks, on the console: the same object as the JSON. Computes nothing."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from warmup_tasks.sources.account import ExtractionSummary
from warmup_tasks.sources.inspection import Inspection

MOST_FILES = 20
MOST_NAMES = 8


def print_inspection(inspection: Inspection, console: Console) -> None:
    """Print files with their formats and grounds, counts, the first problems, and what to change at the source."""
    for table in (_files(inspection), _account(inspection.account), _problems(inspection), _advice(inspection)):
        if table.row_count:
            console.print(table)
            console.print()


def _files(inspection: Inspection) -> Table:
    files = inspection.account.files
    table = _table("Files", "file", "format", "records", "on what ground")
    for read in files[:MOST_FILES]:
        style = "dim" if read.format is None else ""
        table.add_row(Text(read.file), read.format or "none", f"{read.records:,}", Text(read.ground), style=style)
        for note in read.notes:
            table.add_row("", "", "", Text(note, style="yellow"))
    if len(files) > MOST_FILES:
        table.add_row(f"and {len(files) - MOST_FILES:,} more", "", "", "", style="dim")
    return table


def _account(account: ExtractionSummary) -> Table:
    table = _table("Counts", "what", "number", "of these")
    table.add_row("records read", f"{account.requests_read:,}", "")
    table.add_row("usable requests", f"{account.requests_usable:,}", _parts(account.usable_by_use))
    table.add_row("quarantined", f"{account.rows_quarantined:,}", _parts(account.quarantined_by_reason))
    table.add_row("duplicates", f"{account.duplicates:,}", "")
    table.add_row("not a request", f"{account.not_a_request:,}", _parts(account.not_a_request_by_ground))
    if account.feedback_rows:
        table.add_row("feedback", f"{account.feedback_rows:,}", "")
    if account.first_time and account.last_time:
        span = f"{account.first_time:%Y-%m-%d %H:%M:%S} to {account.last_time:%Y-%m-%d %H:%M:%S} UTC"
        table.add_row("days", f"{len(account.days):,}", span)
    for name, values in (("models", account.models), ("adapters", account.adapters)):
        more = f" and {len(values) - MOST_NAMES} more" if len(values) > MOST_NAMES else ""
        table.add_row(name, f"{len(values):,}", Text(", ".join(values[:MOST_NAMES]) + more))
    table.add_row("tenants", f"{account.tenants:,}", "")
    table.add_row("cache salts", f"{account.salts:,}", "")
    return table


def _problems(inspection: Inspection) -> Table:
    table = _table("First problems", "file", "line", "reason", "detail")
    for problem in inspection.problems:
        table.add_row(Text(problem.file), f"{problem.line}", Text(problem.reason), Text(problem.detail))
    return table


def _advice(inspection: Inspection) -> Table:
    table = _table("To get more from this log", "format", "missing", "requests", "what to change")
    for part in inspection.advice:
        share = f"{part.missing:,} of {part.requests:,}"
        table.add_row(part.format, part.field.replace("_", " "), share, Text(part.hint))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        is_number = column in ("records", "number", "line", "requests")
        table.add_column(column, justify="right" if is_number else "left", header_style="dim", overflow="fold")
    return table


def _parts(counts: Mapping[str, int]) -> Text:
    return Text(" · ".join(f"{name} {count:,}" for name, count in counts.items() if count))
