"""The run's figures on the console, as rich tables: the same object as the JSON and the page. Computes nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from warmup_tasks.reporting.model import ItemCounts, RunSummary, TunedClass, Tuning
from warmup_tasks.reporting.report import coverage_lines, headlines, reason_rows, verdict
from warmup_tasks.reporting.svg import number
from warmup_tasks.reporting.tuning import told, tuning_rows, value_rows

STYLES = {"good": "bold green", "fair": "bold yellow", "poor": "bold red", "unknown": "bold"}
COUNTS = ("planned", "warmed", "validated", "ready", "skipped", "rejected", "unverified")
MOST_REASONS = 12


def print_summary(summary: RunSummary, console: Console) -> None:
    """Print verdict, headline figures, items by kind, replicas and reasons."""
    said = verdict(summary)
    console.print(f"\n[{STYLES[said.css]}]{said.title}[/] {said.value}", highlight=False)
    console.print(f"{said.note} Run {summary.run_id}, as of {summary.as_of:%Y-%m-%d %H:%M} UTC.\n", highlight=False)
    for table in (_headlines(summary), _items(summary), _cost(summary), _replicas(summary), _reasons(summary)):
        if table.row_count:
            console.print(table)
            console.print()
    for line in coverage_lines(summary):
        console.print(line, highlight=False)
    if summary.tuning.state != "off":
        console.print(f"[bold]Tuning[/] {told(summary.tuning)}", highlight=False)


def print_tuning(tuning: Tuning, console: Console) -> None:
    """Print what tuning came to: a line a traffic class, then each class's values, last and best."""
    console.print(f"\n[bold]{told(tuning)}[/]\n", highlight=False)
    classes = _table("Traffic classes", "class", "requests", "trials", "objective", "P95", "false", "recall")
    for row in tuning_rows(tuning):
        figures = (row[name] for name in ("requests", "trials", "objective", "p95", "false_share", "recall"))
        classes.add_row(row["traffic_class"], *figures)
    if classes.row_count:
        console.print(classes)
        console.print(
            "last values → best trial, on the newest traffic, which no trial saw; less is better\n", style="dim"
        )
    for one in tuning.classes:
        style = "green" if one.values != one.last else "yellow"
        console.print(f"[bold]{one.traffic_class}[/]: [{style}]{one.verdict}[/]", highlight=False)
        if one.problem:
            console.print(one.problem, highlight=False)
        if one.best:
            console.print(_values(one))


def _values(one: TunedClass) -> Table:
    table = _table("", "parameter", "last", "best", "effect")
    for row in value_rows(one):
        table.add_row(row["name"], row["last"], row["best"], row["effect"])
    return table


def print_mapping(values: Mapping[str, Any], console: Console) -> None:
    """Print a small summary of one step: a line a value, nested mappings under dotted names."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in _flat(values):
        table.add_row(Text(name), Text(value))
    console.print(table)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", ", ".join(str(each) for each in value) or "–"
        else:
            is_plain_number = isinstance(value, int | float) and not isinstance(value, bool)
            yield f"{prefix}{name}", number(value) if is_plain_number else "–" if value is None else str(value)


def _table(title: str, *columns: str, numbers_from: int = 1) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place >= numbers_from else "left", header_style="dim")
    return table


def _told(value: float | None) -> str:
    return "–" if value is None else number(value)


def _headlines(summary: RunSummary) -> Table:
    table = _table("Measured in this run", "figure", "value", "", numbers_from=9)
    for headline in headlines(summary):
        table.add_row(headline.title, headline.value, headline.note)
    return table


def _items(summary: RunSummary) -> Table:
    table = _table("Items", "kind", *COUNTS)
    everything: list[tuple[str, ItemCounts]] = [*summary.items.by_kind.items(), ("all", summary.items)]
    for kind, counts in everything:
        table.add_row(kind, *(_told(getattr(counts, name)) for name in COUNTS))
    return table


def _cost(summary: RunSummary) -> Table:
    table = _table("What the plan costs", "where", "items", "prefill tokens", "warming s", "validation s", "Redis MB")
    for place in summary.cost:
        seconds = (number(place.warming_s), number(place.validation_s))
        table.add_row(
            place.where, f"{place.items:,}", f"{place.prefill_tokens:,}", *seconds, number(place.redis_bytes / 1e6)
        )
    return table


def _replicas(summary: RunSummary) -> Table:
    table = _table("Replicas", "replica", "profile", "epoch", "capacity", "planned", "ready", "share", numbers_from=3)
    for replica in summary.replicas:
        share = "–" if replica.ready_share is None else f"{replica.ready_share:.0%}"
        table.add_row(
            replica.name,
            replica.profile,
            replica.epoch or "unknown",
            f"{replica.capacity_tokens:,}",
            _told(replica.planned),
            _told(replica.ready),
            share,
        )
    return table


def _reasons(summary: RunSummary) -> Table:
    table = _table("Not ready, and why", "items", "reason", "kinds", "decided in", numbers_from=9)
    for row in reason_rows(summary)[:MOST_REASONS]:
        table.add_row(row["n_items"], row["reason"], row["kinds"], row["step"])
    return table
