"""The command ``warmup``: the steps of a night by hand, over the same library calls as the DAG.

Each file of this room holds the commands of one subject; each command is a few calls into ``nightly``, ``local`` or the
stores. Heavy libraries load only in the command that needs them.
"""

from typing import Annotated

import typer

from warmup_tasks import __version__
from warmup_tasks.cli import answers, backfill, logs, nights, readiness, site, tuning
from warmup_tasks.cli.common import out

app = typer.Typer(
    name="warmup",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    help="Decide from request logs what will be asked for, load it ahead, prove that it is loaded, mark it ready.\n\n"
    "`warmup run` does everything on this machine. The other commands work on a site: set `WARMUP_LAKE`, "
    "`WARMUP_REDIS_URL` and `WARMUP_FLEET` (`warmup run --keep` prints those of the local one).",
)
for room in (logs, nights, backfill, site, tuning, readiness, answers):
    room.register(app)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point of the ``warmup`` command."""
    app()
