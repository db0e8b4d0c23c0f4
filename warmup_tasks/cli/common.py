"""What all commands share: options, consoles, messages for people, progress, and how a run is named."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.progress import Progress as Bars

from warmup_tasks import nightly
from warmup_tasks.errors import ConfigurationError, WarmupError
from warmup_tasks.runs import Run, wishes_of
from warmup_tasks.settings import Site

Progress = Callable[[int, int], None]
"""Called with what is done and how much there is."""

out, err = Console(), Console(stderr=True)

Log = Annotated[str, typer.Option("--log", help="File, folder or glob with request logs; empty takes WARMUP_LOG.")]
Format = Annotated[str, typer.Option("--format", help="Log format, or `auto`.")]
AsOf = Annotated[str, typer.Option("--as-of", help="Plan for the time from here on, ISO 8601 with a zone.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Wishes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any field of a run's form as name=value (`docs/contracts.md`); may be repeated."),
]


@contextmanager
def errors_for_people() -> Iterator[None]:
    """Turn the library's errors into one message and exit code 1: a stack trace helps nobody who mistyped a path."""
    try:
        yield
    except WarmupError as error:
        err.print(f"[bold red]{type(error).__name__.removesuffix('Error')}[/]: {error}", highlight=False)
        raise typer.Exit(1) from None


@contextmanager
def progress(is_json: bool) -> Iterator[Callable[[str], Progress]]:
    """Yield a factory of progress callbacks ``(done, total)``, one bar a name; silent for machines."""
    with Bars(console=err, disable=is_json or not err.is_terminal, transient=True) as bars:

        def bar(name: str) -> Progress:
            task = bars.add_task(name, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield bar


def show(summary: Mapping[str, Any], is_json: bool) -> None:
    """Print a summary as JSON, or as a table for people."""
    if is_json:
        print_json(summary)
    else:
        from warmup_tasks.reporting.console import print_mapping

        print_mapping(summary, out)


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output."""
    out.print_json(json.dumps(value, default=str))


def values_of(pairs: list[str] | None) -> dict[str, Any]:
    """Return ``name=value`` pairs as typed values; values are read as YAML, so lists are ``[a, b]``.

    Raises:
        ConfigurationError: a pair without ``=``, or a value that is no YAML.
    """
    values = {}
    for pair in pairs or []:
        name, separator, text = pair.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {pair}: write name=value")
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigurationError(f"--set {name}: the value cannot be read") from None
    return values


def run_of(site: Site, as_of: str, log: str, log_format: str, wishes: list[str] | None) -> Run:
    """Return the run that a command's options name, with the parameters that earlier nights tuned for it."""
    asked = {"as_of": as_of or None, "log": log, "log_format": log_format, **values_of(wishes)}
    request, explicit = wishes_of(asked, "options")
    return nightly.begin(site.lake_uri, request, explicit)
