"""Commands that carry out a night, step by step on a site or whole on this machine."""

import signal
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from warmup_tasks import nightly
from warmup_tasks.cli.common import (
    AsOf,
    Format,
    Json,
    Log,
    Wishes,
    err,
    errors_for_people,
    out,
    print_json,
    run_of,
    show,
    values_of,
)
from warmup_tasks.errors import ConfigurationError
from warmup_tasks.settings import Site


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    for command in (plan, explain, warm, run):
        app.command()(command)
    app.command("validate")(validate)


def plan(as_of: AsOf, log: Log = "", log_format: Format = "auto", wishes: Wishes = None, is_json: Json = False) -> None:
    """Survey the replicas and choose what to warm: shows items, capacity use and cost; warms nothing."""
    with errors_for_people():
        site = Site.from_environment()
        asked = run_of(site, as_of, log, log_format, wishes)
        profile = nightly.profile(site, asked)
        show({"run_id": asked.run_id, "profile": profile, "plan": nightly.plan(site, asked)}, is_json)


def explain(
    item: Annotated[str, typer.Argument(help="Id of an item, as plans and reports show it; its beginning will do.")],
    run_id: Annotated[str, typer.Option("--run", help="Id of the run; empty takes the newest plan.")] = "",
    lake_uri: Annotated[str, typer.Option("--lake", envvar="WARMUP_LAKE", help="Where the plan lies.")] = "",
    is_json: Json = False,
) -> None:
    """Say why an item was chosen or refused, and what leaving it out would have cost."""
    from warmup_tasks.lake import Lake
    from warmup_tasks.planning.explain import explain as explained

    with errors_for_people():
        if not lake_uri:
            raise ConfigurationError("--lake: say where the plan lies, here or in WARMUP_LAKE")
        lake = Lake(lake_uri)
        chosen = run_id or max(lake.partitions("plan"), default="")
        if not chosen:
            raise ConfigurationError(f"there is no plan in the lake {lake_uri} yet: `warmup plan` makes one")
        found = explained(lake, chosen, item)
    if is_json:
        print_json([{**asdict(each), "row": each.row.model_dump(mode="json")} for each in found])
    else:
        for each in found:
            out.print("\n".join(each.lines()), highlight=False)


def warm(as_of: AsOf, log: Log = "", log_format: Format = "auto", wishes: Wishes = None, is_json: Json = False) -> None:
    """Carry out the plan of the same options: cold twins first, then the waves in order."""
    with errors_for_people():
        site = Site.from_environment()
        asked = run_of(site, as_of, log, log_format, wishes)
        show(nightly.twins_and_waves(site, asked), is_json)


def validate(
    as_of: AsOf, log: Log = "", log_format: Format = "auto", wishes: Wishes = None, is_json: Json = False
) -> None:
    """Probe what was warmed, hottest first, and publish marks for what is proved."""
    with errors_for_people():
        site = Site.from_environment()
        asked = run_of(site, as_of, log, log_format, wishes)
        show(nightly.probes_and_marks(site, asked), is_json)


def run(
    log: Annotated[str, typer.Option(help="Log to run over; empty makes the sample log.")] = "",
    log_format: Format = "auto",
    as_of: Annotated[str, typer.Option(help="Plan for the time from here on; empty chooses one from the log.")] = "",
    engine: Annotated[str, typer.Option(help="`double`, or `vllm` (real, on this CPU).")] = "double",
    engine_urls: Annotated[str, typer.Option(help="Your own vLLM servers instead, separated by commas.")] = "",
    wishes: Wishes = None,
    folder: Annotated[Path, typer.Option("--out", help="Where results go.")] = Path("out"),
    is_kept: Annotated[bool, typer.Option("--keep", help="Keep all running until Ctrl-C; print the site.")] = False,
    is_json: Json = False,
) -> None:
    """Run a whole night on this machine: Redis, engines, agent and an Airflow run, started and stopped here."""
    from warmup_tasks.local.night import LocalNight

    with errors_for_people():
        night = LocalNight(log, log_format, _time(as_of), engine, engine_urls, values_of(wishes))
        summary = night.run(folder, err, _until_interrupted if is_kept else None)
    if is_json:
        out.print_json(summary.model_dump_json())
    else:
        from warmup_tasks.reporting.console import print_summary

        print_summary(summary, out)
        out.print(f"\n[bold]{folder / 'run' / 'report.html'}[/] shows it in full.", highlight=False)


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigurationError(f"--as-of {text}: write a time such as 2026-11-27T02:00:00+00:00") from None


def _until_interrupted(site: Site, *_: object) -> None:
    """Print the site's variables for another shell, then wait for Ctrl-C."""
    for name, value in site.to_environment().items():
        out.print(f"export {name}={value}", highlight=False, soft_wrap=True)
    err.print("everything keeps running; Ctrl-C stops it")
    with suppress(KeyboardInterrupt):
        signal.pause()
