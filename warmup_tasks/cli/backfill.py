"""The command that backfills nights through Airflow, with the dates written as Airflow needs them."""

import shlex
import subprocess
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated

import typer

from warmup_tasks.airflow.backfill import backfill as command_of
from warmup_tasks.airflow.backfill import explained, lines
from warmup_tasks.cli.common import Json, Wishes, err, errors_for_people, out, print_json, values_of
from warmup_tasks.errors import ConfigurationError, GiveUpError


class Reprocess(StrEnum):
    """What becomes of nights that have a run."""

    NONE = "none"
    FAILED = "failed"
    COMPLETED = "completed"


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command()(backfill)


def backfill(
    first: Annotated[str, typer.Option("--from", help="First night, by its date in Airflow: 2026-11-20.")],
    last: Annotated[str, typer.Option("--to", help="Last night, included.")],
    reprocess: Annotated[
        Reprocess,
        typer.Option(help="Nights that have a run: leave them, run `failed` ones again, or all that are `completed`."),
    ] = Reprocess.NONE,
    wishes: Wishes = None,
    is_oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="Else the newest, which alone warms.")
    ] = False,
    max_active_runs: Annotated[int, typer.Option(min=1, help="Nights under way at a time.")] = 1,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let Airflow only list the runs it would make.")
    ] = False,
    is_printed: Annotated[bool, typer.Option("--print", help="Print the command; run nothing.")] = False,
    is_json: Json = False,
) -> None:
    """Plan past nights anew, as after a new model version; of these only the newest day's plan is warmed."""
    with errors_for_people():
        found = command_of(
            _day("--from", first),
            _day("--to", last),
            now=datetime.now(UTC),
            reprocess=reprocess.value,
            conf=values_of(wishes) or None,
            is_oldest_first=is_oldest_first,
            max_active_runs=max_active_runs,
            is_dry_run=is_dry_run,
        )
        if is_json:
            print_json(found._asdict())
        else:
            err.print("\n".join(lines(found)), highlight=False)
            out.print(shlex.join(found.command), highlight=False, soft_wrap=True)
        if not is_printed:
            _run(found.command)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigurationError("airflow is not on the PATH: run the printed command where Airflow is") from None
    if done.returncode:
        printed = done.stdout + done.stderr
        why = explained(printed) or "\n".join(printed.strip().splitlines()[-3:])
        raise GiveUpError(f"Airflow refused: {why}")
    err.print(done.stdout.strip(), highlight=False)


def _day(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{option} {text}: write a date such as 2026-11-22") from None
